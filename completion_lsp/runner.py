"""Runs the policies of `completion_client.editing`: tells them what happens and carries their decisions out."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from completion.v1 import completion_pb2 as pb
from completion_client import InvalidArgumentError, ServiceError, Session
from completion_client.editing import (
    NO_NEXT_EDITS,
    Ask,
    AskEdit,
    Cancel,
    Change,
    Decision,
    EditDecision,
    EditingPolicy,
    EditingSettings,
    Extent,
    Hide,
    LineEdit,
    NextEditPolicy,
    Report,
    Show,
    ShowEdit,
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
_NO_NEXT_EDITS = "NO_NEXT_EDITS"
"""The contract's ErrorReason of a server whose model writes no edits. An older server does not know the mode."""

_Policy = TypeVar("_Policy", EditingPolicy, NextEditPolicy)
_Shown = TypeVar("_Shown", Show, ShowEdit)
_AnyDecision = Decision | EditDecision


class Editor(Protocol):
    """What the policy of completions is run for."""

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


class EditEditor(Protocol):
    """What the policy of next edits is run for."""

    def make_edit_request(self) -> pb.CompleteRequest | None:
        """Return the request for the present text, if it can be sent."""
        ...

    def on_edits_settled(self) -> None:
        """Take that all decisions of the moment were carried out."""
        ...


class _Runner(ABC, Generic[_Policy, _Shown]):
    """Runs one policy for one editor. Use it in one event loop."""

    def __init__(self, policy: _Policy, session: Callable[[], Session | None], on_settled: Callable[[], None]) -> None:
        self._policy: _Policy = policy
        if session() is None:
            policy.away(0.0)
        self._on_settled = on_settled
        self._calls = Calls(session, self._on_text, self._on_end)
        self._open: set[int] = set()
        self._timer = Timer(self._tick)
        self._shown: _Shown | None = None

    @property
    def shown(self) -> _Shown | None:
        """What is to be shown, if the policy has it for the present text; its request may be open still."""
        return self._shown

    @property
    def is_idle(self) -> bool:
        """Whether nothing more is to come until something happens."""
        return not self._policy.is_pending

    def drawn(self, request: int) -> None:
        """Tell the policy that the editor shows the answer to a request."""
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

    @abstractmethod
    def _ask(self, ask: Ask | AskEdit) -> Iterable[_AnyDecision]:
        """Send a request; return the policy's decisions if that fails."""

    @abstractmethod
    def _on_text(self, number: int, text: str) -> None:
        """Take text of a request."""

    @abstractmethod
    def _on_end(self, number: int, ended: Ended) -> None:
        """Take the end of a request."""

    def _tick(self) -> None:
        self._carry_out(self._policy.tick(now_ms()))

    def _carry_out(self, decisions: Iterable[_AnyDecision]) -> None:
        queue = deque(decisions)
        while queue:
            match queue.popleft():
                case Ask() | AskEdit() as ask:
                    queue.extend(self._ask(ask))
                case Cancel(number):
                    self._open.discard(number)
                    self._calls.cancel_nowait(number)
                case Show() | ShowEdit() as shown:
                    self._shown = shown  # type: ignore[assignment]  # a policy shows its own kind
                case Hide():
                    self._shown = None
                case Report() as report:
                    self._calls.report_nowait(report)
                case Wait(until_ms):
                    self._timer.set(until_ms)
        self._on_settled()


class PolicyRunner(_Runner[EditingPolicy, Show]):
    """Runs the policy of completions."""

    def __init__(self, session: Callable[[], Session | None], settings: Settings, editor: Editor) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        least_ms = max(_LEAST_DELAY_MS, settings.delay_ms or 0)
        own = EditingSettings(follows_rhythm=settings.delay_ms is None, delay_min_ms=least_ms)
        self._editor = editor
        self._timeout_ms = settings.timeout_ms
        super().__init__(EditingPolicy(own), session, editor.on_settled)

    @property
    def final(self) -> Show | None:
        """What is to be shown, if it is whole."""
        return None if self._shown is None or self._shown.request in self._open else self._shown

    @property
    def is_asking(self) -> bool:
        """Whether a request is open."""
        return bool(self._open)

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

    def _on_text(self, number: int, text: str) -> None:
        self._carry_out(self._policy.received(number, text, now_ms()))

    def _on_end(self, number: int, ended: Ended) -> None:
        self._open.discard(number)
        if ended.reason not in _WHOLE:
            self._editor.on_failed()
        self._carry_out(self._policy.ended(number, ended.reason, now_ms(), retry_after_ms=ended.retry_after_ms))

    def _ask(self, ask: Ask | AskEdit) -> Iterable[_AnyDecision]:
        assert isinstance(ask, Ask)
        most_ms = self._timeout_ms if ask.trigger is Trigger.EXPLICIT else min(self._timeout_ms, _AUTOMATIC_TIMEOUT_MS)
        if self._calls.send_nowait(ask.request, self._editor.make_request(ask), most_ms / _MS_PER_S):
            self._open.add(ask.request)
            return ()
        self._editor.on_failed()
        return self._policy.ended(ask.request, "error", now_ms())

    def _tick(self) -> None:
        if self._editor.is_waiting():
            super()._tick()


class EditRunner(_Runner[NextEditPolicy, ShowEdit]):
    """Runs the policy of next edits."""

    def __init__(self, session: Callable[[], Session | None], timeout_s: float, editor: EditEditor) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        self._timeout_s = timeout_s
        self._editor = editor
        super().__init__(NextEditPolicy(), session, editor.on_edits_settled)

    def wanted(self, text: Text, version: int) -> None:
        """Tell the policy that the editor asks."""
        self._carry_out(self._policy.wanted(text, version, now_ms()))

    def changed(self, text: Text, version: int) -> None:
        """Tell the policy of a change, but not of a kind that asks: the editor decides when to ask."""
        self._carry_out(self._policy.changed(text, version, Change.OTHER, now_ms()))

    def accepted(self, request: int, text: Text, version: int) -> None:
        """Tell the policy of an acceptance. It asks for the next edit, which the editor then finds ready."""
        self._carry_out(self._policy.accepted(request, text, version, now_ms()))

    def busy(self, is_busy: bool) -> None:
        """Tell the policy whether a completion is asked."""
        self._carry_out(self._policy.busy(is_busy, now_ms()))

    def _on_text(self, number: int, text: str) -> None:
        """Ignore it: an edit comes with the end."""

    def _on_end(self, number: int, ended: Ended) -> None:
        edit, version = None, None
        if ended.end is not None and ended.end.HasField("edit"):
            found = ended.end.edit
            edit, version = LineEdit(found.first_line, found.line_count, found.text), found.document_version
        reason = NO_NEXT_EDITS if ended.error is not None and _writes_none(ended.error) else ended.reason
        self._carry_out(self._policy.ended(number, reason, now_ms(), edit, version, ended.retry_after_ms))

    def _ask(self, ask: Ask | AskEdit) -> Iterable[_AnyDecision]:
        message = self._editor.make_edit_request()
        if message is None:
            return self._policy.ended(ask.request, "stop", now_ms())
        if not self._calls.send_nowait(ask.request, message, self._timeout_s):
            return self._policy.ended(ask.request, "error", now_ms())
        return ()


def _writes_none(error: ServiceError) -> bool:
    is_mode_unknown = isinstance(error, InvalidArgumentError) and any(each.field == "mode" for each in error.violations)
    return error.reason == _NO_NEXT_EDITS or is_mode_unknown
