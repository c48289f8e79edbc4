"""What each patch of vLLM changes, on two engines: one without any patch, and one with all of them."""

import asyncio
import threading
from collections.abc import Iterator
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


ANY = float("inf")
EXPECTED = {
    "exporters": ((1, 1), (0, 0)),
    "spans of a request without trace headers": ((1, 1), (0, 0)),
    "listening ports": ((2, ANY), (0, 1)),
    "rejection samplings": ((NUM_TOKENS - 1, ANY), (0, 0)),
    "passes of the draft model": ((NUM_TOKENS - 1, ANY), (0, 1)),  # it computes the prompt
    "fetches of drafts": ((NUM_TOKENS - 1, ANY), (0, 0)),
    "counted tokens": ((0, 0), (NUM_TOKENS, NUM_TOKENS)),
    # Temperatures are NaN without the patch; with it logits in bfloat16 may tie.
    "greedy texts that a temperature near 0 gives too": ((0, 0), (NUM_TEXTS - 1, NUM_TEXTS)),
    "CPU seconds of an idle engine": ((NUM_MESSAGES / 4, ANY), (0, NUM_MESSAGES / 4)),
    "survivals of a seed with a long prompt": ((0, 0), (1, 1)),
}
"""Bounds of what the engine without patches does, and of what that with all of them does; the counts are at K = 0."""

Observed = dict[str, float]


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
    return {
        **dict(zip(counting_worker.COUNTED, spent, strict=True)),
        "exporters": sum("Otel" in name for name in threads),
        "listening ports": num_listening(engine),
        "counted tokens": num_counted,
        "spans of a request without trace headers": num_spans,
        "greedy texts that a temperature near 0 gives too": sum(greedy == cold for greedy, cold in texts),
        "CPU seconds of an idle engine": await idle_cpu_s(engine),
        "survivals of a seed with a long prompt": await survives_seed(engine),
    }


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


@pytest.mark.parametrize("name", EXPECTED)
def test_a_patch_mends_its_fault(observed: tuple[Observed, Observed], name: str) -> None:
    found = [each[name] for each in observed]
    assert all(low <= value <= high for value, (low, high) in zip(found, EXPECTED[name], strict=True)), found
