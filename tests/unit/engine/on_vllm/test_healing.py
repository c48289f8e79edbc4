"""The masks of an answer's beginning, its state, and how a CPU applies them."""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from completion_server.engine.vllm.patches.cpu import masked_rows

pytest.importorskip("vllm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of vLLM's own imports
    from vllm import SamplingParams
    from vllm.v1.request import Request
    from vllm.v1.structured_output.utils import apply_grammar_bitmask

    from completion_server.engine.vllm import healing
    from completion_server.engine.vllm.healing import GivenBeginning, HealingScheduler, Masks

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


@pytest.mark.parametrize(("text", "tokens"), [("abc", (2,)), ("abb", (10, 3)), ("cé", (5, 8)), ("az", (0,)), ("z", ())])
def test_the_longest_tokens_say_a_text(masks: Masks, text: str, tokens: tuple[int, ...]) -> None:
    assert GivenBeginning(masks, text).tokens() == tokens


@pytest.mark.parametrize(
    ("planned", "max_batched", "max_len", "expected"),
    [
        ({"begun": 20}, 64, 64, {"begun": [2, 3]}),
        ({"begun": 12}, 64, 64, {}),  # its prompt goes on
        ({"begun": 20, "mate": 40}, 64, 64, {"begun": [2, 3]}),
        ({"begun": 20, "mate": 41}, 64, 64, {"begun": [2]}),  # the draft model needs a place for each request
        ({"begun": 20, "mate": 42}, 64, 64, {}),
        ({"begun": 20}, 64, 22, {"begun": [2]}),
    ],
)
def test_a_prompt_s_last_step_has_as_many_drafts_as_there_is_room(
    masks: Masks, planned: dict[str, int], max_batched: int, max_len: int, expected: dict[str, list[int]]
) -> None:
    begun, mate = (
        Request(name, [1] * size, SamplingParams(max_tokens=8), None) for name, size in (("begun", 20), ("mate", 90))
    )
    begun.structured_output_request = SimpleNamespace(grammar=GivenBeginning(masks, "abcb"))  # type: ignore[assignment]
    scheduler = SimpleNamespace(
        vllm_config=SimpleNamespace(speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=1)),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=max_batched),
        max_num_scheduled_tokens=max_batched, max_model_len=max_len, num_spec_tokens=3,
        requests={"begun": begun, "mate": mate}, _uncounted=set(),
    )  # fmt: skip
    scheduler.first_drafts = partial(HealingScheduler.first_drafts, scheduler)
    step = SimpleNamespace(
        num_scheduled_tokens=dict(planned), total_num_scheduled_tokens=sum(planned.values()),
        scheduled_spec_decode_tokens={},
    )  # fmt: skip
    HealingScheduler._add_first_drafts(scheduler, step)  # type: ignore[arg-type]
    assert step.scheduled_spec_decode_tokens == expected
    num_added = sum(map(len, expected.values()))
    assert (
        step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values()) == sum(planned.values()) + num_added
    )
    assert scheduler._uncounted == set(expected)


@pytest.mark.parametrize(
    ("changes", "verifies"),
    [
        ({}, True),
        ({"num_spec_tokens": 0}, False),
        ({"use_v2_model_runner": True}, False),
        ({"has_mamba_layers": True}, False),
        ({"max_concurrent_batches": 2}, False),
    ],
)
def test_prompts_end_with_drafts_where_the_worker_verifies_them(changes: dict[str, object], *, verifies: bool) -> None:
    assert HealingScheduler._verifies_drafts_of_here(scheduler_with(**changes)) is verifies


def test_prompts_end_without_drafts_on_a_vllm_whose_scheduler_is_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = {**healing._RELIED_ON, "update_from_output": "0", "of_another_version": "0"}
    monkeypatch.setattr(healing, "_RELIED_ON", known)
    assert not HealingScheduler._verifies_drafts_of_here(scheduler_with())
    assert "has another update_from_output and of_another_version: prompts end without drafts" in caplog.text


def scheduler_with(**changes: object) -> Any:
    """What a scheduler with synchronous steps and a draft says of itself, with changes."""
    speculative = SimpleNamespace(draft_sample_method="greedy")
    config = SimpleNamespace(
        speculative_config=speculative, max_concurrent_batches=changes.pop("max_concurrent_batches", 1)
    )
    own = {"num_spec_tokens": 4, "use_v2_model_runner": False, "has_mamba_layers": False}
    return SimpleNamespace(vllm_config=config, **{**own, **changes})


def test_a_token_of_a_marker_does_not_go_on(masks: Masks) -> None:
    assert GivenBeginning(masks, "ab").validate_tokens([39]) == []


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_cpu_masks_the_rows_that_vllm_masks(num_drafts: int) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = ["free", "begun", "gone", "said"]
    drafts = {"begun": [1] * num_drafts, "free": [1]}
    num_rows = sum(1 + len(drafts.get(each, ())) for each in ids[:2] + ids[3:])
    logits = torch.randn(num_rows, SIZE, generator=generator)
    batch = SimpleNamespace(req_ids=["free", "begun", "said"])
    masks = torch.randint(-(2**31), 2**31 - 1, (3 + num_drafts, 2), dtype=torch.int32, generator=generator)
    masks[-1] = -1
    grammar = SimpleNamespace(structured_output_request_ids=["gone", "begun", "said"], grammar_bitmask=masks.numpy())
    step = SimpleNamespace(scheduled_spec_decode_tokens=drafts)
    expected, found = logits.clone(), logits.clone()
    apply_grammar_bitmask(step, grammar, batch, expected)
    masked_rows.replacement(apply_grammar_bitmask)(step, grammar, batch, found)
    assert torch.equal(expected, found)
    assert (found == -torch.inf).any()
