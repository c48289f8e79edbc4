"""Runs the policy of `completion_client.editing`: tells it what happens and carries its decisions out."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from completion.v1 import completion_pb2 as pb
from completion_client import Session
from completion_client.editing import (
    Ask,
    Cancel,
    Change,
    Decision,
    EditingPolicy,
    EditingSettings,
    Extent,
    Hide,
    Report,
    Show,
    Text,
    Trigger,
    Wait,
)
from completion_lsp.calls import Calls, Ended
from completion_lsp.settings import Settings
from completion_lsp.timer import Timer, now_ms

_MS_PER_S = 1000
_LEAST_DELAY_MS = 1
"""Without a delay the policy would ask at each change, before the editor does."""
_AUTOMATIC_TIMEOUT_MS = 2000
"""At most, for what no user asked: while a request is open, later keys may ask nothing."""
_WHOLE = ("stop", "length")


class Editor(Protocol):
    """What the policy is run for."""

    def is_waiting(self) -> bool:
        """Tell whether an answer is wanted. The policy's time passes only then: the editor decides when to ask."""
        ...

    def make_request(self, ask: Ask) -> pb.CompleteRequest:
        """Return the request for the present text."""
        ...

    def on_failed(self) -> None:
        """Take that a request had no whole answer."""
        ...

    def on_settled(self) -> None:
        """Take that all decisions of the moment were carried out."""
        ...


class PolicyRunner:
    """Runs one policy for one editor. Use it in one event loop."""

    def __init__(self, session: Callable[[], Session | None], settings: Settings, editor: Editor) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        least_ms = max(_LEAST_DELAY_MS, settings.delay_ms or 0)
        own = EditingSettings(follows_rhythm=settings.delay_ms is None, delay_min_ms=least_ms)
        self._policy = EditingPolicy(own)
        if session() is None:
            self._policy.away(0.0)
        self._editor = editor
        self._timeout_ms = settings.timeout_ms
        self._calls = Calls(session, self._on_text, self._on_end)
        self._open: set[int] = set()
        self._timer = Timer(self._tick)
        self._shown: Show | None = None

    @property
    def shown(self) -> Show | None:
        """What is to be shown, if the policy has a text for the present place; its request may be open still."""
        return self._shown

    @property
    def final(self) -> Show | None:
        """What is to be shown, if it is whole."""
        return None if self._shown is None or self._shown.request in self._open else self._shown

    @property
    def is_asking(self) -> bool:
        """Whether a request is open."""
        return bool(self._open)

    @property
    def is_idle(self) -> bool:
        """Whether nothing more is to come until something happens."""
        return not self._policy.is_pending

    def changed(self, text: Text, change: Change) -> None:
        """Tell the policy of a change."""
        self._carry_out(self._policy.changed(text, change, now_ms()))

    def moved(self, text: Text) -> None:
        """Tell the policy where the cursor is."""
        self._carry_out(self._policy.moved(text, now_ms()))

    def explicit(self, text: Text) -> None:
        """Tell the policy that the user asked."""
        self._carry_out(self._policy.explicit(text, now_ms()))

    def accepted(self, request: int, text: Text, extent: Extent, inserted: str) -> None:
        """Tell the policy of an acceptance."""
        self._carry_out(self._policy.accepted(request, text, extent, inserted, now_ms()))

    def drawn(self, request: int) -> None:
        """Tell the policy that the editor shows a request's text."""
        self._carry_out(self._policy.shown(request, now_ms()))

    def left(self) -> None:
        """Tell the policy that the user looks elsewhere."""
        self._carry_out(self._policy.left(now_ms()))

    def on_connected(self) -> None:
        """See LinkListener."""
        self._carry_out(self._policy.back(now_ms()))

    def on_away(self) -> None:
        """See LinkListener."""
        self._calls.abandon_nowait()
        self._open.clear()
        self._carry_out(self._policy.away(now_ms()))

    def stop(self) -> None:
        """Cancel what is open, for another runner to take over."""
        self.left()
        self._timer.stop()

    def survival_report(self, request: int) -> Callable[[int, float], None]:
        """Return a function that reports how much of a request's text is there after so many seconds."""
        return self._calls.survival_report(request)

    def _on_text(self, number: int, text: str) -> None:
        self._carry_out(self._policy.received(number, text, now_ms()))

    def _on_end(self, number: int, ended: Ended) -> None:
        self._open.discard(number)
        if ended.reason not in _WHOLE:
            self._editor.on_failed()
        decisions = self._policy.ended(number, ended.reason, now_ms(), retry_after_ms=ended.retry_after_ms)
        self._carry_out(decisions)

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        queue = deque(decisions)
        while queue:
            match queue.popleft():
                case Ask() as ask:
                    queue.extend(self._send(ask))
                case Cancel(number):
                    self._open.discard(number)
                    self._calls.cancel_nowait(number)
                case Show() | Hide() as shown:
                    self._shown = shown if isinstance(shown, Show) else None
                case Report() as report:
                    self._calls.report_nowait(report)
                case Wait(until_ms):
                    self._timer.set(until_ms)
        self._editor.on_settled()

    def _send(self, ask: Ask) -> Iterable[Decision]:
        """Send a request; return the policy's decisions if that fails."""
        most_ms = self._timeout_ms if ask.trigger is Trigger.EXPLICIT else min(self._timeout_ms, _AUTOMATIC_TIMEOUT_MS)
        if self._calls.send_nowait(ask.request, self._editor.make_request(ask), most_ms / _MS_PER_S):
            self._open.add(ask.request)
            return ()
        self._editor.on_failed()
        return self._policy.ended(ask.request, "error", now_ms())

    def _tick(self) -> None:
        if self._editor.is_waiting():
            self._carry_out(self._policy.tick(now_ms()))
