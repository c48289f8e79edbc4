"""n-gram drafts from the last answers to the same user."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from completion_server.engine.vllm import AUTHOR
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


class Runner:
    """What is read of vLLM's model runner."""

    max_model_len = 16

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(
            req_ids=[], num_tokens_no_spec=np.zeros(4, np.int32), token_ids_cpu=np.zeros((4, 16), np.int32)
        )

    def add(self, request_id: str, author: str, tokens: tuple[int, ...], answer: tuple[int, ...]) -> None:
        extra = {AUTHOR: author} if author else None
        self.requests[request_id] = SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args=extra), output_token_ids=list(answer)
        )
        index, whole = len(self.input_batch.req_ids), (*tokens, *answer)
        self.input_batch.req_ids.append(request_id)
        self.input_batch.num_tokens_no_spec[index] = len(whole)
        self.input_batch.token_ids_cpu[index, : len(whole)] = whole

    def end(self) -> None:
        self.requests.clear()
        self.input_batch.req_ids.clear()


def test_an_author_has_drafts_from_the_own_answers_alone() -> None:
    runner, drafts = Runner(), RecalledDrafts()
    runner.add("a", "ann", (1,), (5, 6, 7))
    runner.add("b", "bob", (1,), (5, 8))
    runner.add("c", "", (1,), (5, 9))
    assert drafts.propose(runner, [[7], [8], [9]], 3) == [[], [], []]
    runner.end()
    for number, author in enumerate(("ann", "bob", "", "eve")):
        runner.add(str(number), author, (2,), (5,))
    assert drafts.propose(runner, [[5]] * 4, 3) == [[6], [8], [], []]
    assert drafts.propose(runner, [[], [5], [5], [5]], 3) == [[], [8], [], []], "nothing sampled: its prompt goes on"


def test_the_last_four_answers_are_kept() -> None:
    runner, drafts = Runner(), RecalledDrafts()
    for number in range(5):
        runner.add(f"ann-{number}", "ann", (), (number, 50 + number))
        drafts.propose(runner, [[0]], 3)
        runner.end()
    for first, expected in ((0, []), (1, [51]), (4, [54])):
        runner.add("asks", "ann", (first,), ())
        assert drafts.propose(runner, [[first]], 3) == [expected]
        runner.end()


def test_no_draft_goes_beyond_the_longest_sequence() -> None:
    runner, drafts = Runner(), RecalledDrafts()
    runner.add("a", "", (1, 2, 3, 4) * 3, (1, 2, 3))
    assert drafts.propose(runner, [[3]], 3) == [[4]]
    runner.end()
    runner.add("b", "", (1, 2, 3, 4) * 4, ())
    assert drafts.propose(runner, [[4]], 3) == [[]]
