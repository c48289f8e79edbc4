"""n-gram drafts from the last answers to the same user."""

import warnings

import numpy as np
import pytest

from completion_server.engine.vllm import AUTHOR

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of vLLM's own imports
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from completion_server.engine.vllm.drafts.recalled import RecalledDrafts, what_followed

BOUNDARY = 0x01000000
"""Beside 1 its bytes hold those of 256, across both tokens."""


def packed(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


@pytest.mark.parametrize(
    ("answers", "text", "most", "expected"),
    [
        ([], (1, 2, 3), 4, []),
        ([], (), 4, []),
        ([], (5,), 4, []),
        ([], (1, 2, 3, 1, 2), 4, [3, 1]),  # as many as the run has tokens
        ([], (1, 2, 3, 1, 2), 1, [3]),
        ([], (7, 1, 9, 7, 2, 7), 4, [2]),  # the last place
        ([], (3, 3), 4, [3]),
        ([(1, 2, 8, 9)], (1, 2, 3, 1, 2), 4, [8, 9]),  # an answer before the text
        ([(2, 8)], (1, 2, 3, 1, 2), 4, [3, 1]),  # but the longer run first
        ([(1, 2, 4), (1, 2, 5)], (1, 2), 4, [4]),
        ([(0, 1, 2)], (1, 2), 4, []),  # nothing follows
        ([(1, 2, 3, 4, 5, 6, 7, 8, 9)], (0, 1, 2, 3, 4), 8, [5, 6, 7, 8]),
        ([(1, BOUNDARY, 6)], (256,), 4, []),  # a place within tokens is none
        ([(256, 5, 1, BOUNDARY, 6)], (256,), 4, [5]),
    ],
)
def test_drafts_follow_the_longest_run_of_last_tokens(
    answers: list[tuple[int, ...]], text: tuple[int, ...], most: int, expected: list[int]
) -> None:
    assert what_followed([packed(*each) for each in answers], packed(*text), most) == expected


def running(request_id: str, author: str, prompt: tuple[int, ...], answer: tuple[int, ...] = ()) -> Request:
    extra = {AUTHOR: author} if author else None
    request = Request(request_id, list(prompt), SamplingParams(max_tokens=64, extra_args=extra), None)
    request.append_output_token_ids(list(answer))
    return request


def test_an_author_has_drafts_from_the_own_answers_alone() -> None:
    drafts = RecalledDrafts()
    ended = [running("a", "ann", (1,), (5, 6, 7)), running("b", "bob", (1,), (5, 8)), running("c", "", (1,), (5, 9))]
    assert [drafts.after(each, 3) for each in ended] == [[], [], []]
    drafts.keep_ended(())
    asking = [running(str(number), author, (2,), (5,)) for number, author in enumerate(("ann", "bob", "", "eve"))]
    assert [drafts.after(each, 3) for each in asking] == [[6], [8], [], []]
    assert drafts.after(asking[0], 0) == []


def test_the_last_four_answers_are_kept() -> None:
    drafts = RecalledDrafts()
    for number in range(5):
        drafts.after(running(f"ann-{number}", "ann", (0,), (number, 50 + number)), 3)
        drafts.keep_ended(())
    for first, expected in ((0, []), (1, [51]), (4, [54])):
        assert drafts.after(running(f"asks-{first}", "ann", (first,)), 3) == expected


def test_drafts_follow_new_tokens_and_those_said() -> None:
    drafts, request = RecalledDrafts(), running("a", "", (1, 2, 3, 4, 1))
    assert drafts.after(request, 3) == [2]
    assert drafts.after(request, 3, said=(2,)) == [3, 4]
    request.append_output_token_ids([2, 3])
    assert drafts.after(request, 3) == [4, 1, 2]
    drafts.keep_ended({"a"})
    assert drafts.after(request, 3) == [4, 1, 2]
