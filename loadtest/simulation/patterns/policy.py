"""The client with this project's policy (docs/client-policy.md)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from completion_client.editing import Ask as AskNow
from completion_client.editing import (
    Cancel,
    Change,
    Decision,
    EditingPolicy,
    EditingSettings,
    Extent,
    Hide,
    Mode,
    Show,
    Text,
    Wait,
)
from loadtest.simulation.patterns.port import Ask, Client, Document, Port

MAX_TOKENS = {Mode.SINGLE_LINE: 48, Mode.MULTI_LINE: 128}
"""The server's defaults."""


class PolicyClient(Client):
    """Carries the policy's decisions out."""

    def __init__(self, port: Port, settings: EditingSettings) -> None:
        """Begin without a document."""
        self._port = port
        self._policy = EditingPolicy(settings)
        self._document = Document("", "", "")
        self._cancels: dict[int, Callable[[], None]] = {}
        self._shown = 0

    def changed(self, document: Document, change: Change) -> None:
        """See Client."""
        self._carry_out(self._policy.changed(self._at(document), change, self._port.now_ms()))

    def moved(self, document: Document) -> None:
        """See Client."""
        self._carry_out(self._policy.moved(self._at(document), self._port.now_ms()))

    def accepted(self, document: Document, inserted: str) -> None:
        """See Client."""
        text = self._at(document)
        self._carry_out(self._policy.accepted(self._shown, text, Extent.WHOLE, inserted, self._port.now_ms()))

    def rejected(self) -> None:
        """See Client."""
        self._carry_out(self._policy.rejected(self._port.now_ms()))

    def mode_of(self, mode: Mode) -> Mode:
        """Return the mode to ask for, from that of the policy."""
        return mode

    def received(self, number: int, text: str) -> None:
        """Take text of a request."""
        self._carry_out(self._policy.received(number, text, self._port.now_ms()))

    def ended(self, number: int, reason: str, retry_after_ms: float | None) -> None:
        """Take the end of a request."""
        self._cancels.pop(number, None)
        self._carry_out(self._policy.ended(number, reason, self._port.now_ms(), retry_after_ms=retry_after_ms))

    def _at(self, document: Document) -> Text:
        self._document = document
        return Text(document.uri, document.before, document.after)

    def _tick(self) -> None:
        self._carry_out(self._policy.tick(self._port.now_ms()))

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case AskNow(number, trigger, mode):
                    mode = self.mode_of(mode)
                    ask = Ask(self._document, trigger, mode, MAX_TOKENS[mode])
                    self._cancels[number] = self._port.send(ask, _Listener(self, number))
                case Cancel(number):
                    self._cancels.pop(number)()
                case Show(number, text):
                    self._shown = number
                    self._port.show(text)
                case Hide():
                    self._port.show("")
                case Wait(until_ms):
                    self._port.call_at(until_ms, self._tick)


@dataclass(frozen=True, slots=True)
class _Listener:
    client: PolicyClient
    number: int

    def on_text(self, text: str) -> None:
        self.client.received(self.number, text)

    def on_end(self, reason: str, retry_after_ms: float | None) -> None:
        self.client.ended(self.number, reason, retry_after_ms)
