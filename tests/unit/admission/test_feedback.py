"""Validation of editors' feedback."""

import pytest

from completion_server.admission.feedback import KEPT_S, Answers
from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import Feedback


def known(num_characters: int = 10) -> Answers:
    answers = Answers()
    answers.add("a", num_characters, 0.0)
    return answers


def test_a_report_belongs_to_a_known_answer() -> None:
    with pytest.raises(InvalidRequestError, match="sequence: must be that of an answer with text"):
        known().accept("b", Feedback("shown"))
    assert known().accept("a", Feedback("shown"))


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
        assert [answers.accept("a", feedback) for _ in range(3)] == [True, False, False]


def test_answers_are_forgotten_by_age_and_by_number() -> None:
    answers = Answers(max_answers=3)
    for number in range(5):
        answers.add(number, 1, float(number))
    assert len(answers) == 3
    with pytest.raises(InvalidRequestError):
        answers.accept(1, Feedback("shown"))
    answers.add("late", 1, 3.0 + KEPT_S)
    assert len(answers) == 2
    assert answers.accept(4, Feedback("shown"))
