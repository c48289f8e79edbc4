"""The runner carries out what the book decides and leaves no task or request behind, also if something fails."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core import events
from completion_server.core.clock import Deadline
from completion_server.core.errors import Code, UnavailableError
from completion_server.core.outcome import CANCELLED, FinishReason
from completion_server.core.request import Caller, Request, Trigger
from completion_server.engine.interface import EngineDeadError, GenerationRequest, Output, Sink, Work
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.requests import completion
from completion_server.text.prompt.builder import Prompt
from completion_server.text.rules.text import TextRules
from tests.support.examples import examples
from tests.support.services import FOUR_SLOTS, Prompts, RunningService, in_virtual_time, read

ONE_SLOT = dataclasses.replace(FOUR_SLOTS, max_slots=1, max_queued=20)
WORDS = ("a", "b", "c", "d")
FIRST_S, STEP_S = 0.1, 0.1


class Engine(ScriptedEngine):
    """Generates WORDS; a test may have a generation fail after its first output, or not begin for a while."""

    def __init__(self) -> None:
        super().__init__(lambda request: self.words.get(request.id, WORDS), ServiceTimes(FIRST_S, decode_base_s=STEP_S))
        self.words: dict[str, Any] = {}
        self.faults: dict[str, Exception] = {}
        self.silent_s: dict[str, float] = {}
        self.asked: list[str] = []
        self.aborted: list[str] = []

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        self.asked.append(request.id)
        work = Faulty(self, request, sink)
        asyncio.get_running_loop().call_later(self.silent_s.get(request.id, 0.0), work.begin)
        return work


class Faulty:
    """A generation whose outputs, faults and abort a test sees."""

    def __init__(self, engine: Engine, request: GenerationRequest, sink: Sink) -> None:
        self.engine, self.request, self.sink = engine, request, sink
        self.work: Work | None = None

    def begin(self) -> None:
        self.work = ScriptedEngine.submit(self.engine, self.request, self)

    def push(self, output: Output) -> None:
        self.sink.push(output)
        if error := self.engine.faults.get(self.request.id):
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.sink.fail(error)

    def abort(self) -> None:
        self.engine.aborted.append(self.request.id)
        if self.work is not None:
            self.work.abort()


def run(scenario: Callable[[RunningService, Engine], Any], **options: Any) -> None:
    engine = Engine()
    in_virtual_time(lambda running: scenario(running, engine), lambda: engine, **options)


def ask(running: RunningService, name: str, prefix: str = "x", **fields: Any) -> completion.Completion:
    """Ask as a user of this name, alone on the lane."""
    return running.open(name, prefix, **{"caller": Caller(name, name), "use_completion_cache": False} | fields)


def test_slots_follow_the_engine() -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        engine.words |= {f"q{number}": ["x"] * (4 + number % 5) for number in range(300)}
        runner = running.service.runner
        assert runner.book.num_slots == 2
        for number in range(300):
            ask(running, f"q{number}")
            if number % 4 == 3:
                await runner.wait_idle()
        assert runner.book.num_slots > 2

    run(scenario, scheduling=dataclasses.replace(FOUR_SLOTS, max_slots=4, step_tolerance=8.0))


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        engine.silent_s["runs"] = 100.0
        runs = ask(running, "runs", deadline=Deadline(2.0))
        waits = ask(running, "waits", deadline=Deadline(1.0))
        await asyncio.sleep(1.0)
        assert waits.outcome is not None
        assert (await read(runs)).reason is (await read(waits)).reason is FinishReason.DEADLINE
        await running.service.runner.wait_idle()
        assert (running.service.now(), engine.aborted, engine.asked) == (2.0, ["runs"], ["runs"])

    run(scenario, scheduling=ONE_SLOT)


class Refusing(Prompts):
    """Prompts of which that of "refused" can't be built."""

    def build(self, request: Request) -> Prompt:
        if request.id == "refused":
            raise UnavailableError("away", retry_after_ms=70)
        return super().build(request)


def test_a_failure_ends_only_its_own_request() -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        engine.faults = {"bug": ZeroDivisionError(), "dies": EngineDeadError("it died")}
        opened = {name: ask(running, name) for name in ("refused", "bug", "dies", "fine")}
        ends = {name: (await read(each)).end for name, each in opened.items()}
        errors = {name: end.outcome.error for name, end in ends.items() if end.outcome.reason is FinishReason.ERROR}
        codes = {name: error.code for name, error in errors.items() if error is not None}
        assert codes == {"refused": Code.UNAVAILABLE, "bug": Code.INTERNAL, "dies": Code.UNAVAILABLE}
        assert (ends["refused"].outcome.retry_after_ms, ends["fine"].outcome.reason) == (70, FinishReason.STOP)
        assert "Zero" not in str(errors["bug"])

    run(scenario, prompts=Refusing(), scheduling=dataclasses.replace(FOUR_SLOTS, max_slots=5))


def test_generations_that_can_not_start_end_with_their_requests() -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        asked = [ask(running, f"r{number}") for number in range(8)]
        await asyncio.sleep(FIRST_S)
        engine.crash()
        await running.service.runner.wait_idle()
        assert [each.outcome and each.outcome.reason for each in asked] == [FinishReason.ERROR] * 8

    run(scenario, scheduling=ONE_SLOT)


def test_an_engine_that_stands_still_is_reported_when_it_goes_on() -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        for number in range(5):
            await read(ask(running, f"r{number}"))
        latency = running.service.runner.book.latency
        estimate_s = latency.first_token_s
        engine.silent_s["late"] = 40.0
        await read(ask(running, "late"))
        assert latency.first_token_s == pytest.approx(estimate_s)
        stalls = [each for each in running.recorder.recorded if isinstance(each, events.EngineStalled)]
        assert [each.seconds for each in stalls] == [pytest.approx(40.0)]

    run(scenario)


class FaultyRules(TextRules):
    """Rules that fail for requests that a test names."""

    faulty: frozenset[str] = frozenset()

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._is_faulty = request.id in self.faulty

    def feed(self, text: str) -> str:
        if self._is_faulty:
            raise ZeroDivisionError
        return super().feed(text)


@pytest.mark.parametrize("faulty", ["r0", "r1"])
def test_a_reader_that_fails_does_not_disturb_the_others(faulty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "TextRules", FaultyRules)
    monkeypatch.setattr(FaultyRules, "faulty", frozenset([faulty]))

    async def scenario(running: RunningService, engine: Engine) -> None:
        caller = Caller("u", "s")
        names = ("r0", "r1", "r2")
        asked = {name: running.open(name, "x", caller=caller, lane=name) for name in names}
        answers = {name: await read(each) for name, each in asked.items()}
        assert engine.asked == ["r0"]
        error = answers.pop(faulty).end.outcome.error
        assert error is not None
        assert "Zero" not in error.message
        assert [(each.text, each.reason) for each in answers.values()] == [("abcd", FinishReason.STOP)] * 2

    run(scenario)


def test_a_runner_that_does_not_run_refuses_requests() -> None:
    async def scenario(running: RunningService, _engine: Engine) -> None:
        service = running.service
        service.runner._is_running = False
        with pytest.raises(RuntimeError):
            ask(running, "r")

    run(scenario)


TEXT = "".join(WORDS)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "", "engine", "rules"]),
        st.sampled_from(["ann", "bob", "cem", "dan"]),
        st.sampled_from(Trigger),
        st.sampled_from(["x", "xa", "xab", "xq"]),
        st.none() | st.integers(0, 11),
        st.sampled_from([0.0, 0.0, 0.05, 0.15, 0.4]),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.integers(1, 2))
@settings(max_examples=examples(4))
def test_any_requests_cancels_and_faults_leave_one_end_and_a_whole_text(
    steps: list[tuple[str, str, Trigger, str, int | None, float]], num_slots: int
) -> None:
    async def scenario(running: RunningService, engine: Engine) -> None:
        engine.words = {
            f"r{number}": TEXT.removeprefix(prefix[1:]) for number, (_, _, _, prefix, *_) in enumerate(steps)
        }
        asked: list[tuple[str, completion.Completion]] = []
        for number, (fault, user, trigger, prefix, cancelled, pause_s) in enumerate(steps):
            if fault == "engine":
                engine.faults[f"r{number}"] = ZeroDivisionError()
            caller = Caller(user, user, tenant="t", is_verified=True)
            asked.append((prefix, running.open(f"r{number}", prefix, caller=caller, trigger=trigger)))
            if cancelled is not None:
                running.service.runner.cancel_nowait(f"r{cancelled}", CANCELLED)
            await asyncio.sleep(pause_s)
        await running.service.runner.wait_idle()
        ends = Counter(each.request.id for each in running.recorder.recorded if isinstance(each, events.RequestEnded))
        assert ends == Counter(f"r{number}" for number in range(len(steps)))
        for prefix, each in asked:
            answer = await read(each)
            whole = TEXT.removeprefix(prefix[1:])
            assert whole.startswith(answer.text), "text that is not the answer's, or twice"
            assert answer.text == whole or answer.reason is not FinishReason.STOP, "text is missing"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "TextRules", FaultyRules)
        faulty = frozenset(f"r{number}" for number, (fault, *_) in enumerate(steps) if fault == "rules")
        patch.setattr(FaultyRules, "faulty", faulty)
        scheduling = dataclasses.replace(FOUR_SLOTS, max_slots=num_slots, max_queued=20)
        run(scenario, scheduling=scheduling, cache_scope="tenant")
