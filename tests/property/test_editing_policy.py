"""The client's policy under arbitrary typing and any answers: what it shows, asks and reports."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

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
    Wait,
)
from tests.support.examples import examples

TYPED = st.text(alphabet="ab(.\n", min_size=1, max_size=2)
ANSWERS = st.text(alphabet="ab() \n", max_size=5)
REASONS = st.sampled_from(["stop", "length", "superseded", "shed", "cancelled", "error", "deadline"])
SETTINGS = st.builds(
    EditingSettings,
    num_answers=st.integers(1, 3),
    num_rejections=st.integers(1, 3),
    ttft_ms=st.sampled_from([50, 500]),
    cancels=st.booleans(),
    types_along=st.booleans(),
    minds_line=st.booleans(),
)


class EditingMachine(RuleBasedStateMachine):
    """An editor with one document, and a server that gives any answer."""

    @initialize(chosen=SETTINGS)
    def begin(self, chosen: EditingSettings) -> None:
        self.policy = EditingPolicy(chosen)
        self.now_ms = 0.0
        self.before, self.after = "", ""
        self.asked: dict[int, tuple[str, str]] = {}
        """The places of all requests."""
        self.open: dict[int, str] = {}
        """The text so far of the requests without an end."""
        self.texts: dict[int, str] = {}
        """The text of all requests."""
        self.shown: Show | None = None
        self.rejected: list[tuple[str, str]] = []
        self.is_explicit = False
        self.is_away = False
        self.reports: dict[tuple[int, str], int] = {}

    @rule(text=TYPED, closes=st.booleans(), wait_ms=st.sampled_from([0, 100, 900]))
    def type(self, text: str, closes: bool, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.before += text
        if closes and text == "(":
            self.after = ")" + self.after
        self.take(self.policy.changed(self.text, Change.TYPED, self.now_ms))

    @precondition(lambda self: self.shown)
    @rule(length=st.integers(1, 3))
    def type_along(self, length: int) -> None:
        assert self.shown is not None
        self.before += self.shown.text[:length]
        self.take(self.policy.changed(self.text, Change.TYPED, self.now_ms))

    @rule(length=st.integers(1, 4), change=st.sampled_from([Change.DELETED, Change.UNDONE, Change.OTHER]))
    def delete(self, length: int, change: Change) -> None:
        self.before = self.before[: max(0, len(self.before) - length)]
        self.take(self.policy.changed(self.text, change, self.now_ms))

    @rule(share=st.floats(0, 1))
    def move(self, share: float) -> None:
        document = self.before + self.after
        at = round(len(document) * share)
        self.before, self.after = document[:at], document[at:]
        self.take(self.policy.moved(self.text, self.now_ms))

    @rule()
    def ask(self) -> None:
        self.rejected = [each for each in self.rejected if not self.is_there(each)]
        self.take(self.policy.explicit(self.text, self.now_ms))

    @precondition(lambda self: self.shown)
    @rule(length=st.integers(1, 9))
    def accept(self, length: int) -> None:
        shown = self.shown
        assert shown is not None
        inserted = shown.text[:length]
        self.before += inserted
        is_whole = inserted == shown.text
        if is_whole:
            self.after = self.after[shown.replaced :]
        extent = Extent.WHOLE if is_whole else Extent.WORD
        self.take(self.policy.accepted(shown.request, self.text, extent, inserted, self.now_ms))

    @precondition(lambda self: self.shown)
    @rule()
    def reject(self) -> None:
        self.rejected = [*self.rejected, (self.before, self.after)][-self.policy.settings.num_rejections :]
        self.take(self.policy.rejected(self.now_ms))

    @precondition(lambda self: self.shown)
    @rule()
    def draw(self) -> None:
        assert self.shown is not None
        self.take(self.policy.shown(self.shown.request, self.now_ms))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), text=ANSWERS)
    def receive(self, data: st.DataObject, text: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.open[number] += text
        self.texts[number] += text
        self.take(self.policy.received(number, text, self.now_ms))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), text=ANSWERS, reason=REASONS, retry_ms=st.sampled_from([None, 0, 500]))
    def end(self, data: st.DataObject, text: str, reason: str, retry_ms: float | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]
        self.texts[number] += text
        self.take(self.policy.ended(number, reason, self.now_ms, text, retry_ms))

    @rule(wait_ms=st.sampled_from([50, 400, 2000]))
    def pass_time(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.take(self.policy.tick(self.now_ms))

    @rule()
    def lose_connection(self) -> None:
        self.is_away = True
        self.open.clear()
        self.take(self.policy.away(self.now_ms))

    @rule()
    def reconnect(self) -> None:
        self.is_away = False
        self.take(self.policy.back(self.now_ms))

    @rule()
    def leave(self) -> None:
        self.take(self.policy.left(self.now_ms))
        assert self.shown is None

    @property
    def text(self) -> Text:
        return Text("a.py", self.before, self.after)

    def is_there(self, rejected: tuple[str, str]) -> bool:
        """Tell whether the cursor is at a rejected place, or where only its word was typed on."""
        before, after = rejected
        typed = self.before[len(before) :]
        return self.before.startswith(before) and self.after == after and (not typed or typed.isalnum())

    def take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Ask(number):
                    self.take_ask(number)
                case Cancel(number):
                    del self.open[number]
                case Show():
                    self.shown = decision
                case Hide():
                    self.shown = None
                case Report(number, kind, characters):
                    self.take_report(number, kind, characters)
                case Wait(until_ms):
                    assert until_ms > self.now_ms
        self.check_shown()

    def take_ask(self, number: int) -> None:
        place = (self.before, self.after)
        assert number == len(self.asked) + 1
        assert not self.is_away
        assert place not in {self.asked[each] for each in self.open}, "asked twice for the text of an open request"
        assert not any(map(self.is_there, self.rejected)), "asked at a rejected place"
        self.asked[number] = place
        self.open[number] = self.texts[number] = ""

    def take_report(self, number: int, kind: str, characters: int) -> None:
        assert number in self.asked
        total = self.reports.get((number, kind), 0) + characters
        if kind in {"shown", "rejected"}:
            assert (number, kind) not in self.reports
        self.reports[number, kind] = total
        assert sum(num for (each, _kind), num in self.reports.items() if each == number) <= len(self.texts[number])

    def check_shown(self) -> None:
        """The document before the cursor and the shown text are what was asked about and its answer."""
        shown = self.shown
        if shown is None:
            return
        before, after = self.asked[shown.request]
        assert shown.text.strip()
        assert self.before + shown.text == before + self.texts[shown.request]
        assert self.after[shown.replaced :] == after
        assert not any(map(self.is_there, self.rejected)), "shown at a rejected place"


EditingMachine.TestCase.settings = settings(
    max_examples=examples(2), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEditingPolicy: Any = EditingMachine.TestCase
