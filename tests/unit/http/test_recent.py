"""Which requests of one caller are alike, and which supersede which."""

from dataclasses import dataclass, replace

import pytest

from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.http.dialect import Asked
from completion_server.http.recent import Recent, RecentRequests
from completion_server.scheduling.actions import SUPERSEDED

HEAD = "# a line of a long head\n" * 20 + "import os\nimport sys\n\n\ndef main():\n    total = 1\n"
TAIL = "\n\nif __name__ == '__main__':\n    main()\n"
TYPED = Asked(f"{HEAD}    pri", TAIL)
OTHER = Asked("package main\n\nfunc main() {\n\tfmt.", "\n}\n\nfunc other() {\n}\n")
DONE = Outcome(FinishReason.STOP)


@dataclass
class FakeLive:
    outcome: Outcome | None = None

    def cancel(self, outcome: Outcome, /) -> None:
        self.outcome = self.outcome or outcome


class Caller:
    """Sends requests, one at each call."""

    def __init__(self, *, has_name: bool = False) -> None:
        self.requests = RecentRequests()
        self.has_name = has_name
        self.number = 0

    def ask(self, asked: Asked, now: float = 0.0) -> Recent:
        self.number += 1
        recent = self.requests.place("owner", asked, self.number, now, has_name=self.has_name)
        for other in self.requests.add("owner", recent, FakeLive()):
            other.cancel(SUPERSEDED)
        return recent

    @staticmethod
    def end(recent: Recent, text: str, now: float) -> None:
        assert isinstance(recent.live, FakeLive)
        recent.live.outcome = DONE
        recent.end(text, now)


def test_the_next_key_is_in_the_same_lane() -> None:
    caller = Caller()
    first = caller.ask(TYPED)
    assert caller.ask(replace(TYPED, prefix=TYPED.prefix + "n")).lane == first.lane
    assert caller.ask(Asked(HEAD, TAIL)).lane == first.lane


def test_a_user_who_moves_or_edits_elsewhere_is_in_the_same_document() -> None:
    moved_up = Asked(
        "# a line of a long head\nimport os\n", f"\nimport sys\n\n\ndef main():\n    total = 1\n    pri{TAIL}"
    )
    edited_above = Asked("import os\n\n\ndef main():\n    print(2)\n    pri", TAIL)
    for newer in (moved_up, edited_above):
        caller = Caller()
        assert caller.ask(TYPED).lane == caller.ask(newer).lane


def test_another_document_has_another_lane() -> None:
    caller = Caller()
    first, second = caller.ask(TYPED), caller.ask(OTHER)
    assert first.lane != second.lane
    assert caller.ask(replace(TYPED, prefix=TYPED.prefix + "n")).lane == first.lane
    named = [caller.ask(replace(TYPED, document_uri=name)).document for name in ("a.py", "b.py", "a.py")]
    assert named[0] != named[1]
    assert named[0] == named[2]


def test_short_documents_are_told_apart_by_their_beginning() -> None:
    caller = Caller()
    first = caller.ask(Asked("x = "))
    assert caller.ask(Asked("x = f(")).lane == first.lane
    assert caller.ask(Asked("x")).lane == first.lane
    assert caller.ask(Asked("print")).lane != first.lane


def test_an_empty_document_absorbs_no_other() -> None:
    caller = Caller()
    empty = caller.ask(Asked(""))
    other = caller.ask(Asked("x = "))
    assert len({empty.lane, other.lane, caller.ask(Asked("\n  ", "y")).lane}) == 3
    assert caller.ask(Asked("x = f")).lane == other.lane
    assert caller.ask(Asked("  ")).lane == empty.lane
    assert caller.ask(Asked("", "y")).lane != empty.lane


def test_three_alike_at_once_have_a_lane_each_and_end_with_the_next_key() -> None:
    caller = Caller()
    three = [caller.ask(TYPED) for _ in range(3)]
    assert len({each.lane for each in three}) == 3
    assert all(each.is_live for each in three)
    newer = caller.ask(replace(TYPED, prefix=TYPED.prefix + "n"))
    assert newer.lane == three[0].lane  # the book ends that one
    assert [each.is_live for each in three] == [True, False, False]


def test_an_answered_request_is_not_alike() -> None:
    caller = Caller()
    first = caller.ask(TYPED)
    caller.end(first, "nt()", 1.0)
    assert caller.ask(TYPED, 1.1).lane == first.lane


def test_what_follows_an_answer_at_once_is_asked_in_advance() -> None:
    caller = Caller()
    first = caller.ask(TYPED)
    caller.end(first, "nt(total)", 1.0)
    follow_up = Asked(TYPED.prefix + "nt(total)", TAIL)
    shifted = Asked(follow_up.prefix[10:], TAIL)  # llama.vim's window of lines has moved on
    assert caller.ask(shifted, 1.05).trigger is Trigger.PREFETCH
    assert caller.ask(Asked(TYPED.prefix + "x", TAIL), 1.06).trigger is Trigger.AUTOMATIC
    late = Asked(follow_up.prefix[20:], TAIL)
    assert caller.ask(late, 1.39).trigger is Trigger.PREFETCH  # after a timer of 100 ms and the start of curl
    assert caller.ask(follow_up, 1.5).trigger is Trigger.AUTOMATIC  # a user has accepted the text


@pytest.mark.parametrize("follow_up", ["pri)nt(total", "print(total)"])
def test_what_is_right_of_the_cursor_may_stand_on_either_side_of_the_answer(follow_up: str) -> None:
    """llama.vim appends the answer to the whole line."""
    caller = Caller()
    caller.end(caller.ask(Asked(TYPED.prefix, f"){TAIL}")), "nt(total", 1.0)
    assert caller.ask(Asked(f"{HEAD}    {follow_up}", TAIL), 1.2).trigger is Trigger.PREFETCH


def test_what_is_asked_in_advance_ends_nothing() -> None:
    caller = Caller()
    first = caller.ask(TYPED)
    caller.end(first, "nt(total)", 1.0)
    typed = [caller.ask(replace(TYPED, prefix=TYPED.prefix + "x"), 1.01) for _ in range(2)]
    caller.ask(Asked(TYPED.prefix + "nt(total)", TAIL), 1.05)
    assert all(each.is_live for each in typed)


def test_a_named_user_has_the_common_lane() -> None:
    caller = Caller(has_name=True)
    assert [caller.ask(each).lane for each in (TYPED, OTHER)] == ["", ""]
    assert caller.ask(OTHER).lane != ""  # alike


def test_a_crowd_at_one_address_keeps_its_documents_apart() -> None:
    caller = Caller()
    crowd = [Asked(f"def function_{i}():\n    return ") for i in range(30)]
    first = [caller.ask(each).document for each in crowd]
    assert len(set(first)) == 30
    assert [caller.ask(replace(each, prefix=each.prefix + "x")).document for each in crowd] == first


def test_nothing_but_the_last_texts_is_kept() -> None:
    caller = Caller()
    recent = [caller.ask(Asked(f"{HEAD}{i}")) for i in range(40)]
    for each in recent:
        caller.end(each, "text", 0.0)
    assert caller.requests.find("owner", 40) is recent[-1]
    assert caller.requests.find("owner", 1) is None
    assert caller.requests.find("other", 40) is None
    assert all(each.asked is None for each in recent)
    assert recent[-1].text == "text"
