"""The network, its loss, its optimiser and its start from a deeper one."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import LlamaForCausalLM

from draft_model.core import PipelineError, Preset, find_preset
from draft_model.data.shards import BlockSource
from draft_model.models import load_model, make_config, make_model, make_pruned, spread_layers
from draft_model.training.optim import (
    cross_entropies,
    divergences,
    is_hidden_matrix,
    log_probabilities,
    next_token_logits,
)
from draft_model.training.world import World
from tests.support.models import TARGET


def test_muon_gets_the_matrices_of_the_layers_only(preset: Preset) -> None:
    chosen = [name for name, value in make_model(preset.shape, 1).named_parameters() if is_hidden_matrix(name, value)]
    assert len(chosen) == 14
    assert all("proj" in name for name in chosen)


@pytest.mark.parametrize(
    ("name", "expected"), [("embedded-target", 7_475_456), ("embedded-draft", 2_655_488), ("draft-1b", 1_003_046_912)]
)
def test_the_number_of_parameters(name: str, expected: int) -> None:
    shape = find_preset(name).shape
    with torch.device("meta"):
        assert make_model(shape, 1).num_parameters() == shape.num_parameters == expected


def test_a_model_diverges_from_itself_by_nothing_and_from_a_teacher_by_hand(preset: Preset, data: Path) -> None:
    model, other = make_model(preset.shape, 1), make_model(preset.shape, 2)
    block = BlockSource(data, 3).block(0)
    with torch.no_grad():
        ours, theirs = log_probabilities(next_token_logits(model, block.ids)), next_token_logits(other, block.ids)
    assert float(divergences(ours, ours).abs().max()) < 1e-5
    # Cross-entropy against the teacher's distribution less its entropy.
    by_hand = (theirs.softmax(-1) * (theirs.log_softmax(-1) - ours)).sum(-1)
    assert torch.allclose(divergences(ours, theirs), by_hand, atol=1e-5)
    assert float(by_hand.min()) > -1e-6
    padded = torch.cat([theirs, theirs[:, :3]], dim=1)
    assert torch.equal(divergences(ours, padded), divergences(ours, theirs))
    assert cross_entropies(ours, block.ids).shape == (block.ids.numel() - block.ids.shape[0],)


def test_a_draft_starts_with_its_targets_embedding_and_layers_spread_over_its_depth(preset: Preset) -> None:
    assert [spread_layers(*depths) for depths in ((8, 2), (7, 4), (3, 3), (5, 1))] == [
        [0, 7], [0, 2, 4, 6], [0, 1, 2], [4],
    ]  # fmt: skip
    target = make_model(replace(preset.shape, num_layers=5), 1)
    torch.nn.init.normal_(target.model.layers[4].mlp.down_proj.weight)
    draft = make_pruned(preset.shape, target)
    theirs, ours = target.state_dict(), draft.state_dict()
    assert preset.shape.num_layers == len(draft.model.layers) == 2
    assert torch.equal(ours["lm_head.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], theirs["model.layers.4.mlp.down_proj.weight"])
    assert torch.equal(ours["model.layers.0.self_attn.q_proj.weight"], theirs["model.layers.0.self_attn.q_proj.weight"])


def test_a_draft_starts_from_an_int8_target_multiplied_out() -> None:
    target = cast("LlamaForCausalLM", load_model(TARGET))
    draft = make_pruned(find_preset("embedded-draft").shape, target)
    theirs, ours = (model.model.layers[0].mlp.down_proj.weight for model in (target, draft))
    assert torch.equal(ours, theirs)
    assert len(theirs[0].unique()) <= 255, "a row of int8 times one scale"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intermediate_size", 72),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}),
        ("attention_bias", True),
        ("rms_norm_eps", 1e-6),
        ("tie_word_embeddings", False),
    ],
)
def test_a_start_whose_layers_compute_something_else_or_are_too_few_is_refused(
    preset: Preset, name: str, value: object
) -> None:
    other = make_config(preset.shape)
    setattr(other, name, value)
    with pytest.raises(PipelineError, match=name):
        make_pruned(preset.shape, LlamaForCausalLM(other))  # type: ignore[no-untyped-call]
    with pytest.raises(PipelineError, match="1 layers has no 2"):
        make_pruned(preset.shape, make_model(replace(preset.shape, num_layers=1), 1))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Of torch about itself, while it compiles.
def test_the_same_code_is_compiled_for_all_layers_if_configured(preset: Preset) -> None:
    plain, compiled = (make_model(preset.shape, 1) for _ in range(2))
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # A new model's layers change nothing, for any weights.
    compiled.load_state_dict(plain.state_dict())
    World().shard(plain)
    World(is_compiled=True).shard(compiled)
    ids = torch.randint(preset.shape.vocab_size, (2, 16))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    expected = next_token_logits(plain, ids)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
    found = next_token_logits(compiled, ids)
    torch.testing.assert_close(found, expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for logits in (expected, found):
        logits.square().mean().backward()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
