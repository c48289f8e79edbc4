"""Runs the policy of next edits: tells it what happens and carries its decisions out."""

from collections.abc import Callable, Iterable
from typing import Protocol

from completion.v1 import completion_pb2 as pb
from completion_client import InvalidArgumentError, ServiceError, Session
from completion_client.editing import (
    NO_NEXT_EDITS,
    AskEdit,
    Cancel,
    Change,
    EditDecision,
    Hide,
    LineEdit,
    NextEditPolicy,
    Report,
    ShowEdit,
    Text,
    Wait,
)
from completion_lsp.calls import Calls, Ended
from completion_lsp.timer import Timer, now_ms

_NO_NEXT_EDITS = "NO_NEXT_EDITS"
"""The contract's ErrorReason of a server whose model writes no edits. An older server does not know the mode."""


class EditEditor(Protocol):
    """What the policy is run for."""

    def make_edit_request(self) -> pb.CompleteRequest | None:
        """Return the request for the present text, if it can be sent."""
        ...

    def on_edits_settled(self) -> None:
        """Take that all decisions of the moment were carried out."""
        ...


class EditRunner:
    """Runs one policy for one editor. Use it in one event loop."""

    def __init__(self, session: Callable[[], Session | None], timeout_s: float, editor: EditEditor) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        self._policy = NextEditPolicy()
        if session() is None:
            self._policy.away(0.0)
        self._timeout_s = timeout_s
        self._editor = editor
        self._calls = Calls(session, lambda _number, _text: None, self._on_end)
        self._timer = Timer(self._tick)
        self._shown: ShowEdit | None = None

    @property
    def shown(self) -> ShowEdit | None:
        """The edit that is to be shown, if the policy has one for the present text."""
        return self._shown

    @property
    def is_idle(self) -> bool:
        """Whether nothing more is to come until something happens."""
        return not self._policy.is_pending

    def wanted(self, text: Text, version: int) -> None:
        """Tell the policy that the editor asks."""
        self._carry_out(self._policy.wanted(text, version, now_ms()))

    def changed(self, text: Text, version: int) -> None:
        """Tell the policy of a change, but not of a kind that asks: the editor decides when to ask."""
        self._carry_out(self._policy.changed(text, version, Change.OTHER, now_ms()))

    def accepted(self, request: int, text: Text, version: int) -> None:
        """Tell the policy of an acceptance. It asks for the next edit, which the editor then finds ready."""
        self._carry_out(self._policy.accepted(request, text, version, now_ms()))

    def drawn(self, request: int) -> None:
        """Tell the policy that the editor shows a request's edit."""
        self._carry_out(self._policy.shown(request, now_ms()))

    def busy(self, is_busy: bool) -> None:
        """Tell the policy whether a completion is asked."""
        self._carry_out(self._policy.busy(is_busy, now_ms()))

    def left(self) -> None:
        """Tell the policy that the user looks elsewhere."""
        self._carry_out(self._policy.left(now_ms()))

    def on_connected(self) -> None:
        """See LinkListener."""
        self._carry_out(self._policy.back(now_ms()))

    def on_away(self) -> None:
        """See LinkListener."""
        self._calls.abandon_nowait()
        self._carry_out(self._policy.away(now_ms()))

    def stop(self) -> None:
        """Cancel what is open, for another runner to take over."""
        self.left()
        self._timer.stop()

    def survival_report(self, request: int) -> Callable[[int, float], None]:
        """Return a function that reports how much of a request's text is there after so many seconds."""
        return self._calls.survival_report(request)

    def _on_end(self, request: int, ended: Ended) -> None:
        edit, version = None, None
        if ended.end is not None and ended.end.HasField("edit"):
            found = ended.end.edit
            edit, version = LineEdit(found.first_line, found.line_count, found.text), found.document_version
        reason = NO_NEXT_EDITS if ended.error is not None and _writes_none(ended.error) else ended.reason
        self._carry_out(self._policy.ended(request, reason, now_ms(), edit, version, ended.retry_after_ms))

    def _carry_out(self, decisions: Iterable[EditDecision]) -> None:
        for decision in decisions:
            match decision:
                case AskEdit(request):
                    self._send(request)
                case Cancel(request):
                    self._calls.cancel_nowait(request)
                case ShowEdit() | Hide():
                    self._shown = decision if isinstance(decision, ShowEdit) else None
                case Report():
                    self._calls.report_nowait(decision)
                case Wait(until_ms):
                    self._timer.set(until_ms)
        self._editor.on_edits_settled()

    def _send(self, request: int) -> None:
        message = self._editor.make_edit_request()
        if message is None:
            self._carry_out(self._policy.ended(request, "stop", now_ms()))
        elif not self._calls.send_nowait(request, message, self._timeout_s):
            self._carry_out(self._policy.ended(request, "error", now_ms()))

    def _tick(self) -> None:
        self._carry_out(self._policy.tick(now_ms()))


def _writes_none(error: ServiceError) -> bool:
    is_mode_unknown = isinstance(error, InvalidArgumentError) and any(each.field == "mode" for each in error.violations)
    return error.reason == _NO_NEXT_EDITS or is_mode_unknown
