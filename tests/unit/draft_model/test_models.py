"""The network, its loss, its optimiser, its start from a deeper one, and engines that do not start or die."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM

from draft_model.core import PipelineError, Preset, find_preset
from draft_model.models import load_model, make_config, make_model, make_pruned, open_engine, spread_layers
from draft_model.training.losses import block_losses, divergences, is_hidden_matrix, next_token_logits
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


def test_the_loss_is_the_mix_of_cross_entropy_and_divergence_by_hand(preset: Preset) -> None:
    ids = torch.randint(preset.shape.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, theirs = (next_token_logits(make_model(preset.shape, seed), ids) for seed in (1, 2))
    assert float(divergences(ours, ours).abs().max()) < 1e-5
    by_hand = (theirs.softmax(-1) * (theirs.log_softmax(-1) - ours.log_softmax(-1))).sum(-1)
    padded = torch.cat([theirs, theirs[:, :3]], dim=1)
    torch.testing.assert_close(divergences(ours, padded), by_hand, atol=1e-5, rtol=1e-4)
    plain = -ours.log_softmax(-1).gather(1, ids[:, 1:].reshape(-1, 1)).flatten()
    is_middle = torch.zeros_like(ids, dtype=torch.bool)
    is_middle[0, 5:] = True
    found = block_losses(ours, ids, is_middle, divergences(ours, theirs), 0.7)
    assert float(found.mixed) == pytest.approx(float(0.3 * plain.mean() + 0.7 * by_hand.mean()), rel=1e-4)
    assert float(found.middle) == pytest.approx(float(plain[4:15].mean()), rel=1e-4)


def test_a_draft_starts_with_its_targets_embedding_and_layers_spread_over_its_depth(preset: Preset) -> None:
    assert [spread_layers(*depths) for depths in ((8, 2), (7, 4), (3, 3), (5, 1))] == [
        [0, 7], [0, 2, 4, 6], [0, 1, 2], [4],
    ]  # fmt: skip
    target = make_model(replace(preset.shape, num_layers=5), 1)
    torch.nn.init.normal_(target.model.layers[4].mlp.down_proj.weight)
    theirs, ours = target.state_dict(), make_pruned(preset.shape, target).state_dict()
    assert torch.equal(ours["lm_head.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], theirs["model.layers.4.mlp.down_proj.weight"])


def test_a_draft_starts_from_an_int8_target_multiplied_out() -> None:
    target = cast("LlamaForCausalLM", load_model(TARGET))
    draft = make_pruned(find_preset("embedded-draft").shape, target)
    theirs, ours = (model.model.layers[0].mlp.down_proj.weight for model in (target, draft))
    assert torch.equal(ours, theirs)
    assert len(theirs[0].unique()) <= 255, "a row of int8 times one scale"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}),
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


@pytest.mark.parametrize(
    ("options", "most"), [({"model": "other"}, None), ({"max_num_seqs": 2, "speculative_config": {}}, 1)]
)
def test_settings_that_the_figures_depend_on_can_not_be_chosen(options: Mapping[str, Any], most: int | None) -> None:
    refused = pytest.raises(PipelineError, match=f"{', '.join(options)}: no setting to choose here")
    with refused, open_engine(Path("target"), max_num_seqs=most, options=options):
        pass


class Dying:
    """A vLLM with a dead engine core."""

    llm_engine = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=64), engine_core=SimpleNamespace(shutdown=lambda: None)
    )

    def __init__(self, **_: object) -> None:
        pass

    def generate(self, *_: object, **__: object) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        raise EngineDeadError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Importing vLLM uses deprecated parts of torch.
def test_an_engine_that_dies_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.LLM", Dying)
    refused = pytest.raises(PipelineError, match=f"vLLM died while it served {TARGET}; its own words are above")
    with refused, open_engine(TARGET) as engine:
        engine.complete([[5]], max_tokens=4)
