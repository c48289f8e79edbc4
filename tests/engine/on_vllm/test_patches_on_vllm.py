"""What each patch of vLLM changes, on two engines: one without any patch, and one with all of them."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import pytest_asyncio

from completion_server.core.request import Sampling
from completion_server.engine.interface import EngineDeadError, GenerationRequest, constant_lookup
from completion_server.engine.vllm.patches import ALL
from completion_server.engine.vllm.patches.patch import LEFT_OUT_ENV
from tests.engine.contract import prompt, run_request
from tests.support import counting_worker
from tests.support.vllm import make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.serial, pytest.mark.full]

NUM_TOKENS = 24
NUM_TEXTS = 4
STEP_TOKENS = 256
NUM_MESSAGES = 3
LIMIT_S = 120.0
SETTINGS = (
    "engine.vllm.worker_extension_cls=tests.support.counting_worker.WorkerExtension",
    f"engine.vllm.max_num_batched_tokens={STEP_TOKENS}",
    "traces.endpoint=http://127.0.0.1:1",
)


@dataclass
class Observed:
    """What one of the engines does."""

    exporters: int
    listening: int
    counts: dict[str, int]
    """At K = 0, by the names of `COUNTED`."""
    counted_tokens: int
    """Of the same generation."""
    spans: int
    """Of the same request, which has no trace headers."""
    same_texts: int
    """Greedy texts that a temperature near 0 gives too, of NUM_TEXTS."""
    idle_cpu_s: float
    """After NUM_MESSAGES requests for one token each, a second apart."""
    survives_seed: bool


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest_asyncio.fixture(scope="module")
async def observed(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> tuple[Observed, Observed]:
    """Return what the engine without patches does, and that with all of them."""
    engines = [make_vllm_engine(*SETTINGS), make_vllm_engine(*SETTINGS)]  # import vLLM without its warnings
    from vllm.tracing import otel
    from vllm.v1.engine import output_processor

    providers: list[Any] = []
    spans: list[Any] = []
    path = tmp_path_factory.mktemp("counts") / "counts"
    path.write_bytes(bytes(8 * len(counting_worker.COUNTED)))
    patch.setenv(counting_worker.COUNTS_ENV, str(path))
    patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")  # vLLM sets it
    patch.setattr(otel, "set_tracer_provider", providers.append)
    patch.setattr(output_processor, "instrument_manual", lambda **span: spans.append(span))
    found = []
    for engine, left_out in zip(engines, (",".join(each.name for each in ALL), ""), strict=True):
        patch.setenv(LEFT_OUT_ENV, left_out)
        before = set(threading.enumerate())
        await engine.start()
        try:
            started = set(threading.enumerate()) - before
            found.append(await observe(engine, path, spans, [each.name for each in started]))
        finally:
            await engine.stop()
            for provider in providers:
                provider.shutdown()
    without, patched = found
    return without, patched


async def observe(engine: "VllmEngine", path: Path, spans: list[Any], threads: list[str]) -> Observed:
    """Use the engine in all the ways in which a patch shows; the last one may end it."""
    control = engine.speculation
    assert control is not None
    num_seqs = engine.info.max_num_seqs
    counts = counting_worker.open_counts(str(path))
    num_counted, num_spans = engine.stats().num_generated_tokens, len(spans)
    control.set_lookup(constant_lookup(0, num_seqs))
    before = list(counts)
    await run_request(engine, GenerationRequest("k0", prompt(32, 1), NUM_TOKENS))
    spent = [after - first for after, first in zip(counts, before, strict=True)]
    num_counted, num_spans = engine.stats().num_generated_tokens - num_counted, len(spans) - num_spans
    control.set_lookup(constant_lookup(3, num_seqs))
    texts = [await at_two_temperatures(engine, variant) for variant in range(NUM_TEXTS)]
    return Observed(
        exporters=sum("Otel" in name for name in threads),
        listening=num_listening(engine),
        counts=dict(zip(counting_worker.COUNTED, spent, strict=True)),
        counted_tokens=num_counted,
        spans=num_spans,
        same_texts=sum(greedy == cold for greedy, cold in texts),
        idle_cpu_s=await idle_cpu_s(engine),
        survives_seed=await survives_seed(engine),
    )


async def at_two_temperatures(engine: "VllmEngine", variant: int) -> tuple[str, str]:
    """Return a greedy text, and the text of a temperature that is so low that it draws the same tokens."""
    results = [
        await run_request(
            engine, GenerationRequest(f"at-{degree}-{variant}", prompt(64, variant), 12, Sampling(degree))
        )
        for degree in (0.0, 0.001)
    ]
    return results[0].text, results[1].text


def num_listening(engine: "VllmEngine") -> int:
    processes = [psutil.Process(process_id) for process_id in engine.process_ids]
    sockets = [one for process in processes for one in process.net_connections()]
    return sum(one.status == psutil.CONN_LISTEN for one in sockets)


async def idle_cpu_s(engine: "VllmEngine") -> float:
    """Return the CPU time of the engine's processes for a few requests for one token, and a second after each."""
    await asyncio.sleep(1.5)
    before = engine.cpu_seconds()
    assert before is not None
    for number in range(NUM_MESSAGES):
        await run_request(engine, GenerationRequest(f"idle-{number}", [1, 2, 3], 1))
        await asyncio.sleep(1.0)
    after = engine.cpu_seconds()
    assert after is not None
    return after - before


async def survives_seed(engine: "VllmEngine") -> bool:
    """Return whether the engine generates for a request with a seed whose prompt takes several steps."""
    request = GenerationRequest("seed", prompt(3 * STEP_TOKENS, 7), 4, Sampling(0.8, seed=1))
    try:
        async with asyncio.timeout(LIMIT_S):
            await run_request(engine, request)
    except EngineDeadError:
        return False
    return True


def test_the_temperature_of_drafted_tokens_is_the_requests_own(observed: tuple[Observed, Observed]) -> None:
    without, patched = observed
    assert without.same_texts == 0, "the temperatures are NaN"
    assert patched.same_texts >= NUM_TEXTS - 1, "logits in bfloat16 may tie"


def test_a_seed_and_a_long_prompt_do_not_end_the_engine(observed: tuple[Observed, Observed]) -> None:
    assert [each.survives_seed for each in observed] == [False, True]


def test_an_engine_without_work_uses_no_processor(observed: tuple[Observed, Observed]) -> None:
    without, patched = observed
    assert patched.idle_cpu_s < NUM_MESSAGES / 4 < without.idle_cpu_s


def test_groups_of_one_member_share_a_port(observed: tuple[Observed, Observed]) -> None:
    without, patched = observed
    assert patched.listening <= 1 < without.listening


@pytest.mark.parametrize(
    ("name", "most"), [("rejection samplings", 0), ("passes of the draft model", 1), ("fetches of drafts", 0)]
)
def test_k_0_costs_what_an_engine_without_drafts_costs(
    observed: tuple[Observed, Observed], name: str, most: int
) -> None:
    """The draft model computes the prompt, so that its cache is complete."""
    without, patched = observed
    assert patched.counts[name] <= most
    assert without.counts[name] >= NUM_TOKENS - 1


def test_each_token_is_counted(observed: tuple[Observed, Observed]) -> None:
    assert [each.counted_tokens for each in observed] == [0, NUM_TOKENS]


def test_only_sampled_requests_have_spans_and_the_server_exports_them(observed: tuple[Observed, Observed]) -> None:
    assert [each.spans for each in observed] == [1, 0]
    assert [each.exporters for each in observed] == [1, 0]
