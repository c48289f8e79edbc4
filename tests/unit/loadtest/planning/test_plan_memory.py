"""Memory by hand, and the prefix cache's formula against a simulated cache."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from loadtest.planning.calculation import PrefixCache, plan_of, prefix_cache_of, reuse_curve
from loadtest.planning.inputs import Inputs, Region
from loadtest.planning.model_config import read_model
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from tests.support.models import TARGET

CODE_LLAMA_13B = {
    "num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 13_824, "num_attention_heads": 40,
    "num_key_value_heads": 40, "vocab_size": 32_016, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LAYER = 4 * 5120 * 5120 + 3 * 5120 * 13_824
"""Weights of a layer: four matrices of attention, three of the feed-forward."""
EMBEDDINGS = 2 * 32_016 * 5120
INT8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}


def config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CODE_LLAMA_13B | changes))
    return path


def test_a_token_of_a_13b_code_llama_takes_0_82_mb(tmp_path: Path) -> None:
    assert read_model(config(tmp_path)).kv_bytes_per_token == 2 * 40 * 40 * 128 * 2 == 819_200
    assert read_model(config(tmp_path), "fp8").kv_bytes_per_token == 409_600
    assert read_model(config(tmp_path, num_key_value_heads=8)).kv_bytes_per_token == 163_840
    assert read_model(config(tmp_path, head_dim=64)).kv_bytes_per_token == 409_600


@pytest.mark.parametrize(
    ("changes", "weights_bytes"),
    [
        ({}, 40 * LAYER * 2 + EMBEDDINGS * 2),
        ({"torch_dtype": "float32"}, 40 * LAYER * 2 + EMBEDDINGS * 2),
        ({"tie_word_embeddings": True}, 40 * LAYER * 2 + EMBEDDINGS),
        ({"quantization_config": INT8}, 40 * LAYER + EMBEDDINGS * 2),
        ({"quantization_config": {"quant_method": "fp8"}}, 40 * LAYER + EMBEDDINGS * 2),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 40 * LAYER // 2 + EMBEDDINGS * 2),
        ({"quantization_config": {"load_in_4bit": True}}, 40 * LAYER // 2 + EMBEDDINGS * 2),
        ({"model_type": "starcoder2"}, 40 * (LAYER - 5120 * 13_824) * 2 + EMBEDDINGS * 2),
    ],
)
def test_weights_are_those_of_the_matrices(tmp_path: Path, changes: dict[str, Any], weights_bytes: int) -> None:
    assert read_model(config(tmp_path, **changes)).weights_bytes == weights_bytes


def test_the_embedded_models_weights_are_calculated_to_a_hundredth() -> None:
    """Its file has norms and scales, too."""
    file = TARGET / "model.safetensors"
    assert read_model(TARGET).weights_bytes == pytest.approx(file.stat().st_size, rel=0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "input should be an object"),
        ("{", "invalid json"),
        ("{}", "num_hidden_layers: field required"),
        (json.dumps(CODE_LLAMA_13B | {"hidden_size": 0}), "hidden_size: .* equal to 1, got 0"),
        (json.dumps(CODE_LLAMA_13B | {"dtype": "int4"}), "dtype: input should be .*, got 'int4'"),
        (json.dumps(CODE_LLAMA_13B | {"num_experts": 64}), "num_experts: neither experts nor latent attention"),
        (json.dumps(CODE_LLAMA_13B | {"quantization_config": {}}), "quantization_config: must state the bits"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_calculated_with_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path)


def test_an_80_gb_card_keeps_44_documents_beside_a_13b_model_in_int8(tmp_path: Path) -> None:
    model = read_model(config(tmp_path, quantization_config=INT8))
    memory = {"weights_gb": model.weights_bytes / 1e9, "kv_bytes_per_token": model.kv_bytes_per_token}
    cache = prefix_cache_of(Inputs(1000, **memory))
    # 92% of 80 GB are 73.6, less 3 for activations and graphs, less 13.34 of weights.
    assert cache.kv_gb == pytest.approx(73.6 - 3 - 13.34, abs=0.01)
    # 1,500 tokens of 0.82 MB are 1.23 GB.
    assert cache.documents == pytest.approx(57.26 / 1.2288, abs=0.1)
    one, two = (prefix_cache_of(Inputs(1, gpus_per_server=num)) for num in (1, 2))
    assert two.kv_gb - one.kv_gb == pytest.approx(80 * 0.92 - 3), "two GPUs divide a model and reserve twice"
    with_draft = prefix_cache_of(Inputs(1000))
    assert (
        with_draft.documents == pytest.approx((73.6 - 3 - 15.35) / (1500 * 0.843776e-3)) == pytest.approx(43.7, abs=0.1)
    )


def test_a_gpu_without_room_for_a_document_is_refused() -> None:
    least = (15.35 + 1500 * 843_776e-9 + 3) / 0.92
    with pytest.raises(ValueError, match=rf"^gpu_memory_gb: must be at least {least:.1f} for .*, got 21\.2"):
        prefix_cache_of(Inputs(1, gpu_memory_gb=21.2))
    assert prefix_cache_of(Inputs(1, gpu_memory_gb=21.4)).documents == pytest.approx(1, abs=0.1)


def cache_of(documents: float, scenario: Scenario) -> PrefixCache:
    typing = scenario.typing
    curve = reuse_curve(typing.model, typing.debounce_ms / 1000)
    return PrefixCache(0.0, documents, 1500.0, 1 - typing.idle_share, curve)


def simulated_hit_share(scenario: Scenario, documents: int) -> float:
    """Return the hit share of an LRU over the documents of the load tester's own sessions, in the second half."""
    sessions = make_trace(scenario).sessions
    requests = sorted((each.intended_at_s, each.session) for session in sessions for each in session.requests)
    kept: OrderedDict[int, None] = OrderedDict()
    hits: list[bool] = []
    for at_s, document in requests:
        is_hit = document in kept
        kept[document] = None
        kept.move_to_end(document)
        if len(kept) > documents:
            kept.popitem(last=False)
        if at_s > scenario.duration_s / 2:
            hits.append(is_hit)
    return sum(hits) / len(hits)


@pytest.mark.parametrize(("sessions", "debounce_ms", "documents"), [(300, 50, 22), (300, 150, 44), (600, 50, 44)])
def test_the_hit_share_is_that_of_a_simulated_cache(sessions: int, debounce_ms: float, documents: int) -> None:
    scenario = Scenario.load("editors-10k")
    typing = scenario.typing.model_copy(update={"debounce_ms": debounce_ms})
    scenario = scenario.model_copy(update={"sessions": sessions, "duration_s": 600, "typing": typing})
    found = cache_of(documents, scenario).hit_share(sessions)
    assert found == pytest.approx(simulated_hit_share(scenario, documents), abs=0.01)
    assert 0.95 < found < 0.98


def test_more_sessions_find_less_and_more_memory_finds_more() -> None:
    caches = [prefix_cache_of(Inputs(1, gpu_memory_gb=gb)) for gb in (40, 80, 160)]
    shares = [[cache.hit_share(sessions) for sessions in (10, 100, 1000, 10_000)] for cache in caches]
    assert all(row == sorted(row, reverse=True) for row in shares)
    assert all(list(column) == sorted(column) for column in zip(*shares, strict=True))
    assert shares[0][0] == 1.0, "20 documents for 5 who type"
    assert shares[0][-1] < 0.1


@pytest.mark.parametrize("counted", [1, 38, 600, 4000])
def test_users_ask_as_often_as_their_own_counts_say(counted: float) -> None:
    cache = prefix_cache_of(Inputs(1, requests_per_session_hour=counted))
    asked_in_10_ms = cache.typing_share * cache.curve[0][0]
    assert asked_in_10_ms == pytest.approx(counted / 3600 / 100)


def test_a_loss_brings_fewer_hits_to_each_server() -> None:
    inputs = Inputs(12_000, survive=1)
    cache = prefix_cache_of(inputs)
    for region in plan_of(inputs).regions:
        own = 4000 / region.gpus
        assert region.hit_share == cache.hit_share(own)
        assert region.hit_share_if_lost == pytest.approx(cache.hit_share(own * 1.5))
        assert region.hit_share_if_lost < region.hit_share
    alone = plan_of(Inputs(12_000, (Region("office", 1.0),))).regions[0]
    assert alone.hit_share_if_lost is None


def test_a_server_holds_fewer_sessions_with_less_memory() -> None:
    """The bound of computed tokens, by hand, at the number of sessions that was found."""
    large, small = plan_of(Inputs(12_000, gpu_memory_gb=10_000)), plan_of(Inputs(12_000))
    assert small.cache is not None
    assert small.capacity.sessions < large.capacity.sessions
    missed = (1 - small.cache.hit_share(small.capacity.sessions)) * (1500 - 40)
    generated = small.demand.generated_tokens * 6 / small.inputs.tokens_per_step
    assert small.capacity.requests_per_s == pytest.approx(0.8 * 12_000 / (40 + missed + generated))
    # All documents of the sessions fit: nothing is computed twice.
    assert large.capacity.requests_per_s == pytest.approx(0.8 * 12_000 / (40 + generated))
