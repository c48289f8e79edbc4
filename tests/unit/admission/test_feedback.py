"""Validation of editors' feedback."""

import pytest

from completion_server.admission.feedback import KEPT_S, RecentAnswers
from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import Feedback
from completion_server.core.outcome import Reaction, ServedAnswer

SERVED = ServedAnswer(0.05, 5)


def known(num_characters: int = 10) -> RecentAnswers:
    answers = RecentAnswers()
    answers.add("a", num_characters, 0.0, SERVED)
    return answers


def test_accepted_characters_are_at_most_the_answers_length() -> None:
    with pytest.raises(InvalidRequestError, match=r"accepted_characters: must be at most 10.*, got 4294967295"):
        known().accept("a", Feedback("accepted", 2**32 - 1))
    assert known().accept("a", Feedback("accepted", 10))


def test_pieces_accepted_one_by_one_sum_to_at_most_the_answers_length() -> None:
    answers = known()
    assert answers.accept("a", Feedback("accepted_word", 4))
    assert answers.accept("a", Feedback("accepted_word", 4))
    with pytest.raises(InvalidRequestError, match="at most 2"):
        answers.accept("a", Feedback("accepted_line", 3))
    assert answers.accept("a", Feedback("accepted", 2))


def test_a_report_counts_once() -> None:
    answers = known()
    for feedback in (Feedback("shown"), Feedback("survived", 0, 30, 1.0), Feedback("survived", 0, 90, 0.5)):
        assert [answers.accept("a", feedback) is not None for _ in range(3)] == [True, False, False]


def test_answers_are_forgotten_by_age_and_by_number() -> None:
    answers = RecentAnswers(max_answers=3)
    for number in range(5):
        answers.add(number, 1, float(number), SERVED)
    assert len(answers) == 3
    with pytest.raises(InvalidRequestError):
        answers.accept(1, Feedback("shown"))
    answers.add("late", 1, 3.0 + KEPT_S, SERVED)
    assert len(answers) == 2
    assert answers.accept(4, Feedback("shown"))


def test_a_report_tells_of_the_reactions_that_were_not_known_before() -> None:
    def reactions(*reports: Feedback) -> list[list[str]]:
        answers = known(100)
        found = [answers.accept("a", each) for each in reports]
        assert all(each is not None and each.answer is SERVED for each in found)
        return [[reaction.value for reaction in each.reactions] for each in found if each is not None]

    def survived(after_s: int, share: float) -> Feedback:
        return Feedback("survived", 0, after_s, share)

    assert reactions(Feedback("shown"), Feedback("accepted"), survived(30, 0.7)) == [
        ["shown"],
        ["accepted"],
        ["survived"],
    ]
    assert reactions(Feedback("accepted_word", 4), Feedback("accepted_word", 4), Feedback("shown")) == [
        ["shown", "accepted"], [], [],
    ]  # fmt: skip
    assert reactions(Feedback("rejected")) == [["shown"]]
    assert reactions(survived(30, 0.6), survived(90, 0.5)) == [["shown", "accepted"], []]
    assert reactions(survived(360, 2 / 3)) == [["shown", "accepted", "survived"]]
    assert len(Reaction) == 3
