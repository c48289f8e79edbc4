"""Runs a policy of `completion_client.editing`: tells it what happens and carries its decisions out."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from completion.v1 import completion_pb2 as pb
from completion_client import Session
from completion_client.editing import (
    Ask,
    AskEdit,
    Cancel,
    Decision,
    EditDecision,
    EditingPolicy,
    Hide,
    NextEditPolicy,
    Report,
    Show,
    ShowEdit,
    Wait,
)
from completion_lsp.calls import Calls, Ended

_MS_PER_S = 1000

_Policy = TypeVar("_Policy", EditingPolicy, NextEditPolicy)
_Shown = TypeVar("_Shown", Show, ShowEdit)
_Decisions = Iterable[Decision | EditDecision]


def now_ms() -> float:
    """Return the policies' time: milliseconds of the event loop's clock."""
    return asyncio.get_running_loop().time() * _MS_PER_S


class Editor(Protocol):
    """What a policy is run for."""

    def is_waiting(self) -> bool:
        """Tell whether an answer is wanted. The policy's time passes only then: the editor decides when to ask."""
        ...

    def make_request(self, ask: Any) -> tuple[pb.CompleteRequest, float] | None:  # noqa: ANN401 - Ask or AskEdit
        """Return the request for the present text and its time limit in seconds; None if it can't be sent."""
        ...

    def on_text(self, number: int, text: str) -> None:
        """Take text of a request."""
        ...

    def on_ended(self, number: int, ended: Ended) -> None:
        """Take the end of a request, which is to be told to the policy."""
        ...

    def on_settled(self) -> None:
        """Take that all decisions of the moment were carried out."""
        ...


class Runner(Generic[_Policy, _Shown]):
    """Runs one policy for one editor. Use it in one event loop."""

    def __init__(self, policy: _Policy, session: Callable[[], Session | None], editor: Editor) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        self.policy: _Policy = policy
        if session() is None:
            policy.away(0.0)
        self._editor = editor
        self._calls = Calls(session, editor.on_text, self._on_ended)
        self._open: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.shown: _Shown | None = None
        """What is to be shown, if the policy has it for the present text; its request may be open still."""

    @property
    def is_final(self) -> bool:
        """Whether what is to be shown is whole."""
        return self.shown is not None and self.shown.request not in self._open

    @property
    def is_asking(self) -> bool:
        """Whether a request is open."""
        return bool(self._open)

    def tell(self, event: Callable[..., _Decisions], *details: object, **more: object) -> None:
        """Tell the policy of an event, which is one of its methods, and carry its decisions out."""
        for decision in event(*details, now_ms(), **more):
            match decision:
                case Ask() | AskEdit() as ask:
                    self._ask(ask)
                case Cancel(number):
                    self._open.discard(number)
                    self._calls.cancel_nowait(number)
                case Show() | ShowEdit() as shown:
                    self.shown = shown  # type: ignore[assignment]  # a policy shows its own kind
                case Hide():
                    self.shown = None
                case Report() as report:
                    self._calls.report_nowait(report)
                case Wait(until_ms):
                    self._wait(until_ms)
        self._editor.on_settled()

    def on_connected(self) -> None:
        """See LinkListener."""
        self.tell(self.policy.back)

    def on_away(self) -> None:
        """See LinkListener."""
        self._calls.abandon_nowait()
        self._open.clear()
        self.tell(self.policy.away)

    def stop(self) -> None:
        """Cancel what is open, for another runner to take over."""
        self.tell(self.policy.left)
        if self._timer is not None:
            self._timer.cancel()

    def survival_report(self, request: int) -> Callable[[int, float], None]:
        """Return a function that reports how much of a request's text is there after so many seconds."""
        return self._calls.survival_report(request)

    def _ask(self, ask: Ask | AskEdit) -> None:
        made = self._editor.make_request(ask)
        if made is None:
            self._editor.on_ended(ask.request, Ended("stop"))
        elif self._calls.send_nowait(ask.request, *made):
            self._open.add(ask.request)
        else:
            self._editor.on_ended(ask.request, Ended("error"))

    def _on_ended(self, number: int, ended: Ended) -> None:
        self._open.discard(number)
        self._editor.on_ended(number, ended)

    def _wait(self, until_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, until_ms - now_ms()) / _MS_PER_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if self._editor.is_waiting():
            self.tell(self.policy.tick)
