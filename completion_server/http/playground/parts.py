"""The parts of the server that the page shows, and what operators may change with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from completion_server.admission.callers import Callers
from completion_server.admission.settings import LimitSettings
from completion_server.http.playground.figures import LiveFigures
from completion_server.http.playground.messages import SetK, Simulate
from completion_server.serving.service import Service
from completion_server.speculation.live import LiveSpeculation, SpeculationLockedError
from completion_server.speculation.schedule import ScheduleError

_BY = "playground"


class SimulatedEditors(Protocol):
    """Editors that type along, at most one group at a time."""

    @property
    def unavailable_reason(self) -> str:
        """Why there can be none; "" if there can."""
        ...

    @property
    def left_s(self) -> float:
        """Seconds for which they still type; 0 if there are none."""
        ...

    @property
    def failure(self) -> str:
        """Why the last ones failed; "" if they did not."""
        ...

    def start(self) -> None:
        """Start them, unless they type already."""
        ...

    def stop(self) -> None:
        """End them, if they type."""
        ...


@dataclass(frozen=True, slots=True)
class PlaygroundParts:
    """The parts of a server that the page shows and changes."""

    service: Service
    callers: Callers
    speculation: LiveSpeculation
    figures: LiveFigures
    editors: SimulatedEditors
    limits: LimitSettings
    about: Callable[[], dict[str, Any]]
    """Returns the names of the models and the server's version. Called once the engine has started."""


class Operator:
    """The user of one page, who may be an operator."""

    def __init__(self, parts: PlaygroundParts, locked_reason: Callable[[], str]) -> None:
        """`locked_reason` returns why the user may not change the server now; "" for an operator."""
        self._parts = parts
        self._locked_reason = locked_reason

    def carry_out(self, message: SetK | Simulate) -> str:
        """Change the server; return why that can't be, "" if it was done."""
        if reason := self._locked_reason():
            return reason
        try:
            return self._simulate(message) if isinstance(message, Simulate) else self._set_k(message)
        except ScheduleError as error:
            return error.fault
        except SpeculationLockedError as error:
            return str(error)

    def figures(self) -> dict[str, Any]:
        """Return the message with the live figures, and what the user may change."""
        parts, load = self._parts, self._parts.service.load()
        active, editors, locked_reason = parts.speculation.active, parts.editors, self._locked_reason()
        return {
            "type": "figures",
            **parts.figures.document(load),
            "k": parts.speculation.num_speculative_tokens(load.num_occupied),
            "k_max": active.max_num_speculative_tokens,
            "k_mode": active.mode.value,
            "k_locked": locked_reason or active.locked_reason,
            "acceptance": parts.speculation.figures().acceptance,
            "editors_left_s": editors.left_s,
            "editors_locked": locked_reason or editors.unavailable_reason,
            "editors_failure": editors.failure,
        }

    def _set_k(self, message: SetK) -> str:
        if message.k is None:
            self._parts.speculation.set_auto(_BY)
        else:
            self._parts.speculation.set_fixed(message.k, _BY)
        return ""

    def _simulate(self, message: Simulate) -> str:
        editors = self._parts.editors
        if not message.on:
            editors.stop()
            return ""
        if editors.unavailable_reason:
            return editors.unavailable_reason
        editors.start()
        return ""
