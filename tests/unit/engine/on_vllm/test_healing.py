"""The masks of an answer's beginning, and its state."""

import warnings

import pytest
import torch

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of vLLM's own imports
    from completion_server.engine.vllm.healing import GivenBeginning, Masks

TOKENS = dict(enumerate([b"a", b"ab", b"abc", b"b", b"bc", b"c", b"\xc3", b"\xa9", "é".encode(), "éa".encode(), b"ab"]))
SIZE = 40
"""The model's vocabulary, which is padded."""


@pytest.fixture
def masks() -> Masks:
    return Masks(TOKENS, SIZE)


def allowed(state: GivenBeginning) -> set[int]:
    bitmask = torch.zeros(2, 2, dtype=torch.int32)
    state.fill_bitmask(bitmask, 1)
    assert bitmask[0].tolist() == [0, 0]
    return {token for token in range(SIZE) if int(bitmask[1, token // 32]) >> token % 32 & 1}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("ab", {0, 1, 2, 10}), ("b", {3, 4}), ("abcd", {0, 1, 2, 10}), ("é", {6, 8, 9}), ("z", set())],
)
def test_tokens_go_on_with_what_is_to_be_said(masks: Masks, text: str, tokens: set[int]) -> None:
    assert allowed(GivenBeginning(masks, text)) == tokens


def test_it_goes_on_token_by_token_and_back(masks: Masks) -> None:
    state = GivenBeginning(masks, "abé")
    assert state.validate_tokens([0, 3, 6, 7, 5, 39]) == [0, 3, 6, 7, 5, 39], "anything follows what is said"
    assert state.validate_tokens([0, 5]) == [0]
    assert not state.accept_tokens("", [3])
    state.reset()
    assert state.accept_tokens("", [0, 3])
    assert allowed(state) == {6, 8, 9}
    assert state.accept_tokens("", [6])
    assert allowed(state) == {7}
    state.rollback(1)
    assert not state.is_said
    assert state.accept_tokens("", [9])
    assert state.is_said
    assert allowed(state) == set(range(SIZE))
    assert not state.is_terminated()


def test_a_token_of_a_marker_does_not_go_on(masks: Masks) -> None:
    assert GivenBeginning(masks, "ab").validate_tokens([39]) == []
