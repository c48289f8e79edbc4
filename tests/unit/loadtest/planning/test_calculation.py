"""The formulas of a plan, compared with drawn typists, a simulated queue, a simulated cache and memory by hand."""

import heapq
import itertools
import json
import math
import random
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.calculation import (
    Demand,
    PrefixCache,
    ServerCapacity,
    capacity_of,
    demand_of,
    plan_of,
    prefix_cache_of,
    rate_in_time,
    reuse_curve,
    share_waiting,
)
from loadtest.planning.inputs import Inputs, Region
from loadtest.planning.model_config import read_model
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typist import TypingModel
from tests.support.models import TARGET

DEBOUNCE_S = 0.05
LARGE = Inputs(100, gpu_memory_gb=10_000)
"""Memory for the documents of all."""


def capacity(demand: Demand, inputs: Inputs) -> ServerCapacity:
    return capacity_of(demand, inputs, prefix_cache_of(inputs))


def test_requests_end_as_those_of_drawn_typists_do() -> None:
    model, chance = TypingModel(away_share=0.5), random.Random(3)
    standing: list[float] = []
    for _ in range(40):
        keys = model.key_times_s(4000, chance)
        gaps = [after - before for before, after in itertools.pairwise(keys)]
        standing += [gap - DEBOUNCE_S for gap in gaps if gap > DEBOUNCE_S]
    for seconds in (0.06, 0.16, 0.26, 1.0):
        share = sum(each > seconds for each in standing) / len(standing)
        assert model.share_standing(DEBOUNCE_S, seconds) == pytest.approx(share, abs=0.01)
        mean = sum(min(each, seconds) for each in standing) / len(standing)
        assert model.mean_standing_s(DEBOUNCE_S, seconds) == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (32, 30.0)])
def test_the_share_that_waits_is_erlangs(slots: int, load: float) -> None:
    last = load**slots / math.factorial(slots) * slots / (slots - load)
    textbook = last / (sum(load**number / math.factorial(number) for number in range(slots)) + last)
    assert share_waiting(slots, load) == pytest.approx(textbook)


def test_a_simulated_queue_keeps_its_promise_at_the_rate_found() -> None:
    slots, held_s, budget_s, in_time = 8, 0.12, 0.03, 0.95
    rate = rate_in_time(slots, held_s, budget_s, in_time)
    assert 0.5 < rate * held_s / slots < 1
    chance, now, num_late, num = random.Random(1), 0.0, 0, 60_000
    free_at = [0.0] * slots
    for _ in range(num):
        now += chance.expovariate(rate)
        starts = max(now, heapq.heappop(free_at))
        num_late += starts - now > budget_s
        heapq.heappush(free_at, starts + chance.expovariate(1 / held_s))
    assert num_late / num == pytest.approx(1 - in_time, abs=0.015)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"slots": 1}, "slots"),
        ({"computed_tokens_per_s": 1000.0}, "computed tokens"),
        ({"front_end_per_s": 5.0}, "front end"),
    ],
)
def test_the_smallest_bound_is_the_capacity(changes: dict[str, Any], limit: str) -> None:
    inputs = replace(LARGE, **changes)
    demand = demand_of(inputs)
    found = capacity(demand, inputs)
    assert min(found.bounds, key=lambda name: found.bounds[name]) == limit
    assert found.requests_per_s == pytest.approx(found.bounds[limit], rel=1e-4)
    assert found.sessions == pytest.approx(found.requests_per_s / demand.requests_per_s * 100)


shares = st.lists(st.integers(1, 20), min_size=2, max_size=5).map(
    lambda parts: tuple(Region(f"r{place}", part / sum(parts)) for place, part in enumerate(parts))
)


@given(st.integers(1, 200_000), shares, st.integers(0, 2))
def test_a_sized_fleet_answers_in_time_also_without_any_regions_that_it_survives(
    num: int, regions: tuple[Region, ...], survive: int
) -> None:
    survive = min(survive, len(regions) - 1)
    found = plan_of(Inputs(num, regions, survive=survive))
    server_per_s = found.capacity.requests_per_s
    assert all(0 < region.busy <= 1 + 1e-9 for region in found.regions)
    assert sum(region.requests_per_s for region in found.regions) == pytest.approx(found.demand.requests_per_s)
    for lost in itertools.combinations(found.regions, survive):
        share = sum(region.requests_per_s for region in lost) / found.demand.requests_per_s
        for region in found.regions:
            if region not in lost:
                assert region.requests_per_s / (1 - share) <= region.gpus * server_per_s * (1 + 1e-9)


def test_a_fleet_that_is_too_small_shows_fewer() -> None:
    small, enough, more = (plan_of(Inputs(12_000, gpus_per_region=num)) for num in (1, 10, 50))
    assert small.shown_per_hour < enough.shown_per_hour / 2
    assert enough.shown_per_hour == more.shown_per_hour
    assert enough.usd_per_hour == pytest.approx(30 * 3.0)
    assert enough.usd_per_shown * enough.shown_per_hour == pytest.approx(enough.usd_per_hour)


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


def test_users_ask_as_often_as_their_own_counts_say() -> None:
    cache = prefix_cache_of(Inputs(1, requests_per_session_hour=38))
    assert cache.typing_share * cache.curve[0][0] == pytest.approx(38 / 3600 / 100), "in 10 ms"


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
