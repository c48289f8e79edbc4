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
HALF = 40 * LAYER * 2 + EMBEDDINGS * 2
KV = 2 * 40 * 40 * 128 * 2
"""Bytes of a token: keys and values of 40 layers and heads of 128 numbers."""
INT8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}


def config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CODE_LLAMA_13B | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "weights_bytes", "kv_bytes"),
    [
        ({}, HALF, KV),
        ({"torch_dtype": "float32"}, HALF, KV),
        ({"tie_word_embeddings": True}, HALF - EMBEDDINGS, KV),
        ({"quantization_config": INT8}, 40 * LAYER + EMBEDDINGS * 2, KV),
        ({"quantization_config": {"quant_method": "fp8"}}, 40 * LAYER + EMBEDDINGS * 2, KV),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 40 * LAYER // 2 + EMBEDDINGS * 2, KV),
        ({"quantization_config": {"load_in_4bit": True}}, 40 * LAYER // 2 + EMBEDDINGS * 2, KV),
        ({"model_type": "starcoder2"}, HALF - 40 * 5120 * 13_824 * 2, KV),
        ({"num_key_value_heads": 8}, HALF - 40 * 2 * 5120 * 32 * 128 * 2, KV // 5),
        ({"head_dim": 64}, HALF - 40 * 2 * 5120 * 5120 * 2, KV // 2),
    ],
)
def test_memory_is_that_of_the_matrices(
    tmp_path: Path, changes: dict[str, Any], weights_bytes: int, kv_bytes: int
) -> None:
    path = config(tmp_path, **changes)
    found = read_model(path)
    assert (found.weights_bytes, found.kv_bytes_per_token) == (weights_bytes, kv_bytes)
    assert read_model(path, "fp8").kv_bytes_per_token == kv_bytes // 2


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


def test_the_documents_beside_a_model() -> None:
    # 92% of 80 GB are 73.6, less 3 for activations and graphs, less 15.35 of weights; 1,500 tokens of 0.84 MB.
    one, two = (prefix_cache_of(Inputs(1000, gpus_per_server=num)) for num in (1, 2))
    assert one.kv_gb == pytest.approx(73.6 - 3 - 15.35)
    assert one.documents == pytest.approx(one.kv_gb / (1500 * 0.843776e-3)) == pytest.approx(43.7, abs=0.1)
    assert two.kv_gb - one.kv_gb == pytest.approx(80 * 0.92 - 3), "two GPUs divide a model and reserve twice"
    least = (15.35 + 1500 * 843_776e-9 + 3) / 0.92
    with pytest.raises(ValueError, match=rf"^gpu_memory_gb: must be at least {least:.1f} for .*, got 21\.2"):
        prefix_cache_of(Inputs(1, gpu_memory_gb=21.2))
    assert prefix_cache_of(Inputs(1, gpu_memory_gb=21.4)).documents == pytest.approx(1, abs=0.1)


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
    curve = reuse_curve(typing.model, debounce_ms / 1000)
    assert curve[-1] == pytest.approx((1, 0)), "all users ask in the end"
    found = PrefixCache(0.0, documents, 1500.0, 1 - typing.idle_share, curve).hit_share(sessions)
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
    assert cache.typing_share * cache.curve[0][0] == pytest.approx(counted / 3600 / 100), "in 10 ms"


def test_a_loss_brings_fewer_hits_to_each_server() -> None:
    inputs = Inputs(12_000, survive=1)
    cache = prefix_cache_of(inputs)
    for region in plan_of(inputs).regions:
        own = 4000 / region.gpus
        assert region.hit_share == cache.hit_share(own)
        assert region.hit_share_if_lost == pytest.approx(cache.hit_share(own * 1.5))
        assert region.hit_share_if_lost < region.hit_share
    assert plan_of(Inputs(12_000, (Region("office", 1.0),))).regions[0].hit_share_if_lost is None


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
