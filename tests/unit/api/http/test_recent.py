"""Which requests of one caller are duplicates, which supersede which, and what is remembered of them."""

import itertools
from dataclasses import dataclass, replace

import pytest

from completion_server.api.http.dialect import Asked
from completion_server.api.http.recent import Recent, RecentRequests
from completion_server.core.outcome import SUPERSEDED, FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.requests.feedback import KEPT_S

HEAD = "# a line of a long head\n" * 20 + "import os\nimport sys\n\n\ndef main():\n    total = 1\n"
TAIL = "\n\nif __name__ == '__main__':\n    main()\n"
TYPED = Asked(f"{HEAD}    pri", TAIL)
OTHER = Asked("package main\n\nfunc main() {\n\tfmt.", "\n}\n\nfunc other() {\n}\n")
DONE = Outcome(FinishReason.STOP)
numbers = itertools.count(1)


@dataclass
class FakeLive:
    outcome: Outcome | None = None

    def cancel(self, outcome: Outcome, /) -> None:
        self.outcome = self.outcome or outcome


class Caller:
    """Sends requests, one at each call."""

    def __init__(self, requests: RecentRequests | None = None, name: str = "owner", *, has_name: bool = False) -> None:
        self.requests = RecentRequests() if requests is None else requests
        self.name = name
        self.has_name = has_name

    def ask(self, asked: Asked, now: float = 0.0) -> Recent:
        recent = self.requests.place(self.name, asked, next(numbers), now, has_name=self.has_name)
        for other in self.requests.add(recent, FakeLive(), now):
            other.cancel(SUPERSEDED)
        return recent

    def end(self, recent: Recent, text: str, now: float) -> None:
        assert isinstance(recent.live, FakeLive)
        recent.live.outcome = DONE
        self.requests.end(recent, text, now)


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


def test_three_equal_ones_at_once_have_a_lane_each_and_end_with_the_next_key() -> None:
    caller = Caller()
    three = [caller.ask(TYPED) for _ in range(3)]
    assert len({each.lane for each in three}) == 3
    assert all(each.is_live for each in three)
    newer = caller.ask(replace(TYPED, prefix=TYPED.prefix + "n"))
    assert newer.lane == three[0].lane  # the book ends that one
    assert [each.is_live for each in three] == [True, False, False]


def test_an_answered_request_is_no_duplicate() -> None:
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
    assert caller.ask(OTHER).lane != ""  # a duplicate


def test_nothing_but_the_last_texts_is_kept() -> None:
    caller = Caller()
    recent = [caller.ask(Asked(f"{HEAD}{i}")) for i in range(40)]
    for each in recent:
        caller.end(each, "text", 0.0)
    assert caller.requests.find(recent[-1].number) is recent[-1]
    assert caller.requests.find(recent[0].number) is None
    assert len(caller.requests) == 8
    assert all(each.asked is None for each in recent)
    assert recent[-1].text == "text"


def test_what_feedback_can_not_name_any_more_is_forgotten() -> None:
    requests = RecentRequests()
    ann, bob = Caller(requests, "ann"), Caller(requests, "bob")
    first, second = ann.ask(TYPED, 0.0), ann.ask(OTHER, 1.0)
    ann.end(first, "text", 2.0)
    bob.ask(TYPED, KEPT_S + 1.5)
    assert requests.find(second.number) is None
    assert requests.find(first.number) is first
    bob.ask(OTHER, KEPT_S + 2.5)
    assert len(requests) == 2


def test_a_crowd_of_callers_takes_no_more_memory_than_is_allowed() -> None:
    requests = RecentRequests(max_bytes=1_000_000)
    recent = []
    for i in range(1000):
        caller = Caller(requests, f"caller {i}")
        recent.append(caller.ask(Asked(f"{HEAD * 10}{i}", TAIL)))
        caller.end(recent[-1], "text " * 1000, 0.0)
    kept = [each for each in recent if requests.find(each.number)]
    assert kept == recent[-len(kept) :]
    assert 100 < len(kept) < 200


def test_a_document_in_use_is_kept_before_newer_ones() -> None:
    requests = RecentRequests(max_bytes=20_000)
    user = Caller(requests, "user")
    document = user.ask(TYPED).document
    for i in range(100):
        Caller(requests, f"caller {i}").ask(OTHER)
        assert user.ask(TYPED if i % 2 else replace(TYPED, prefix=TYPED.prefix + "n")).document == document
