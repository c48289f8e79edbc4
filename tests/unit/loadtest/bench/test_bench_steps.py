"""The step benchmark, on scripted engines."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from completion_server.engine.interface import EngineDeadError, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.scripted.model import ServiceTimes
from loadtest.bench.steps import FitError, Samples, StepWork, fit, main, measure, typical
from loadtest.simulation import virtual_time
from loadtest.simulation.engine import profile_of

TIMES = ServiceTimes(
    step_base_s=6e-3, prefill_base_s=1e-3, prefill_per_seq_s=2e-3, prefill_per_token_s=1e-4, decode_per_seq_s=2e-3
)


def measured(num_rounds: int = 1, max_num_seqs: int = 16, max_model_len: int = 8192) -> Samples:
    async def run() -> Samples:
        engine = ScriptedEngine(times=TIMES, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        await engine.start()
        try:
            return await measure(engine, (1, 4, 8), ((1, 32), (4, 32), (1, 256)), num_rounds, seed=1)
        finally:
            await engine.stop()

    return virtual_time.run(run())


def test_the_steps_of_an_engine_are_found_again() -> None:
    found = fit(typical(measured(3)))
    assert found.base_s == pytest.approx(6e-3, rel=0.02)
    assert found.per_seq_s == pytest.approx(2e-3, rel=0.02)
    assert found.per_prompt_token_s == pytest.approx(1e-4, rel=0.02)
    assert found.prompts_s == pytest.approx(1e-3, rel=0.1)
    assert found.error < 0.01
    for name, seconds in asdict(ServiceTimes(**found.times)).items():
        assert seconds == pytest.approx(getattr(TIMES, name), rel=0.1), "the simulation gets the same engine"
    assert found.seconds(StepWork(4, 1, 32)) == pytest.approx(TIMES.step_s(32, 4, 0, 1))


def test_no_step_has_more_generations_than_the_engine_runs_at_once() -> None:
    samples = measured(max_num_seqs=4)
    assert {work.num_decoding for work in samples} == {1, 4}
    assert max(work.num_decoding + work.num_prompts for work in samples) == 4


def test_a_prompt_that_does_not_fit_ends_the_measurement() -> None:
    with pytest.raises(ValueError, match="leaves no room in 700"):
        measured(max_model_len=700)


def test_the_death_of_the_engine_ends_the_measurement() -> None:
    def script(request: GenerationRequest) -> Iterator[str]:
        if request.max_tokens > 1:  # the generations that decode
            raise RuntimeError("it broke")
        yield "a"

    async def run() -> None:
        engine = ScriptedEngine(script, TIMES, max_num_seqs=4)
        await engine.start()
        try:
            await measure(engine, (1,), ((1, 32),), 1, seed=1)
        finally:
            await engine.stop()

    with pytest.raises(EngineDeadError, match="it broke"):
        virtual_time.run(run())


def test_disturbed_steps_do_not_count() -> None:
    assert typical({StepWork(2): [0.01, 0.01, 0.01, 0.02, 0.5]}) == {StepWork(2): pytest.approx(0.01)}


def test_no_term_is_negative() -> None:
    found = fit({StepWork(1): 0.010, StepWork(8): 0.009, StepWork(4, 1, 32): 0.012, StepWork(4, 1, 64): 0.011})
    assert found.per_seq_s == found.per_prompt_token_s == 0
    assert found.base_s > 0


@pytest.mark.parametrize("works", [[], [StepWork(1)], [StepWork(size) for size in range(1, 9)]], ids=len)
def test_steps_that_do_not_determine_the_terms_are_refused(works: list[StepWork]) -> None:
    with pytest.raises(FitError, match=f"{len(works)} kinds of steps were measured"):
        fit(dict.fromkeys(works, 0.01))


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "server.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_program_measures_the_configured_engine(config: Callable[[str], str], tmp_path: Path) -> None:
    engine = 'kind = "scripted"\nscripted_times = "small_model_on_two_cores"\nmax_num_seqs = 6'
    path = config(f"[engine]\n{engine}\n[scheduling]\nmax_slots = 6\n")
    out = tmp_path / "times.json"
    done = CliRunner().invoke(main, ["--config", path, "--quick", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert (document["max_num_seqs"], document["enforce_eager"]) == (6, None)
    assert document["num_speculative_tokens"] == 0
    times = profile_of(document).times
    assert times.step_s(320, 4, 0, 1) > times.step_s(32, 4, 0, 1) > times.step_s(0, 4, 0, 0) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('kind = "vllm"', "engine.model: must be set"),
        ('kind = "scripted"\nscripted_times = "instant"', "0 kinds of steps were measured"),
        ('kind = "scripted"\nmax_model_len = 512', "leaves no room in 512"),
    ],
)
def test_an_unmeasurable_engine_is_refused(config: Callable[[str], str], settings: str, message: str) -> None:
    done = CliRunner().invoke(main, ["--config", config(f"[engine]\n{settings}\n"), "--quick"])
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
