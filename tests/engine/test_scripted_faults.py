"""The scripted engine's start, crashes, hangs and refusals, in virtual time."""

import asyncio

import pytest

from completion_server.engine.interface import EngineDeadError, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.simulation.virtual_time import run
from tests.support.scripted import collect, now, request, started, times_of


def test_a_crash_ends_every_generation_and_refuses_the_next() -> None:
    async def main() -> None:
        engine = await started(max_num_seqs=1)
        tasks = [asyncio.create_task(collect(engine, request(name, max_tokens=20))) for name in ("running", "waiting")]
        await asyncio.sleep(0.030)
        engine.crash("out of memory")
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(result) for result in results if isinstance(result, EngineDeadError)] == ["out of memory"] * 2
        assert not engine.is_alive
        assert engine.stats().num_running == engine.stats().num_waiting == 0
        with pytest.raises(EngineDeadError, match="out of memory"):
            await collect(engine, request("late"))
        await engine.stop()

    run(main())


def test_an_output_from_before_the_crash_is_still_read() -> None:
    async def main() -> None:
        engine = await started()
        outputs = engine.generate(request("a", max_tokens=2))
        await anext(outputs)
        await asyncio.sleep(1.0)
        engine.crash()
        assert [output.finish async for output in outputs] == ["length"]
        await engine.stop()

    run(main())


def test_a_hung_engine_is_silent_until_it_resumes() -> None:
    async def main() -> None:
        engine = await started()
        task = asyncio.create_task(collect(engine, request("a", max_tokens=2)))
        await asyncio.sleep(0.001)
        engine.hang()
        await asyncio.sleep(60.0)
        assert engine.is_alive
        assert not task.done()
        engine.resume()
        assert times_of(await task) == [60.001, 60.007]
        engine.hang()
        late = asyncio.create_task(collect(engine, request("b")))
        await asyncio.sleep(1.0)
        await engine.stop()
        await engine.stop()
        with pytest.raises(EngineDeadError, match="stopped"):
            await late

    run(main())


def test_an_error_in_the_script_is_the_engines_death() -> None:
    def broken(_request: GenerationRequest) -> list[str]:
        return [5]  # type: ignore[list-item]

    async def main() -> None:
        engine = await started(broken)
        with pytest.raises(EngineDeadError, match="the engine failed"):
            await collect(engine, request("a"))
        assert not engine.is_alive
        await engine.stop()

    run(main())


def test_requests_that_can_never_run_are_refused() -> None:
    async def main() -> None:
        engine = await started(max_model_len=100, num_kv_blocks=4)
        with pytest.raises(ValueError, match="leaves no room in 100"):
            await collect(engine, request("a", num_prompt=100))
        with pytest.raises(ValueError, match="do not fit into 4"):
            await collect(engine, request("b", num_prompt=90))
        first = engine.generate(request("same"))
        await anext(first)
        with pytest.raises(ValueError, match="open already"):
            await collect(engine, request("same"))
        await first.aclose()
        await engine.stop()

    run(main())


def test_an_engine_serves_after_its_start_and_starts_once() -> None:
    async def main() -> None:
        engine = ScriptedEngine(times=ServiceTimes(start_s=20.0))
        with pytest.raises(EngineDeadError, match="not started"):
            _ = engine.info
        with pytest.raises(EngineDeadError, match="not started"):
            await collect(engine, request("a"))
        await engine.start()
        assert now() == 20.0
        with pytest.raises(RuntimeError, match="starts once"):
            await engine.start()
        await engine.stop()
        broken = ScriptedEngine()
        broken.crash("no such device")
        with pytest.raises(EngineDeadError, match="no such device"):
            await broken.start()
        await broken.stop()

    run(main())
