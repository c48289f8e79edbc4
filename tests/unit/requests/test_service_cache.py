"""The service with a completion cache, in virtual time."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.events import CacheHit, CacheMiss, Event, MissReason
from completion_server.core.outcome import CacheLevel, FinishReason, Usage
from completion_server.core.request import Caller, Trigger
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.requests.scheduling.settings import SchedulingSettings
from completion_server.state.cache.cache import TwoLevelCache
from completion_server.state.cache.shared import Codec, SharedCache
from completion_server.state.settings import CacheSettings
from completion_server.state.store import Arg
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.constants import with_constants
from tests.support.services import FOUR_SLOTS, EventRecorder, RunningService, read, running_service
from tests.unit.state.cache.cache_parts import SECRET, make_keys

ONE_SLOT = SchedulingSettings(max_slots=1, max_queued=4, step_tolerance=0)
TIMES = ServiceTimes(prefill_base_s=0.02, decode_base_s=0.01)
LOCAL_TTL_S = 1.0
"""After this, only Redis has an answer."""
WORDS = ("alp", "ha", " be", "ta")
NAMED = Caller("u", "s", is_verified=True)
OTHER = Caller("v", "s", is_verified=True)


class SlowStore:
    """A store that replies after a time."""

    is_available = True

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.values: dict[Arg, Arg] = {}
        self.num_commands = 0

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> "asyncio.Future[Any]":
        self.num_commands += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if command[0] == "SET":
            self.values[command[1]] = command[2]
        loop.call_later(self.delay_s, future.set_result, self.values.get(command[1]))
        return future


class Cached:
    """A service with a cache, the events of both, and the ids that the engine generated for."""

    def __init__(self, store: SlowStore | None = None, words: Sequence[str] = WORDS, **settings: Any) -> None:
        clock = LoopClock()
        self.recorder = EventRecorder()
        self.generated: list[str] = []
        self._words = words
        shared = None
        if store is not None:
            codec = Codec(SECRET)
            shared = SharedCache(store, codec, clock, self.recorder.handle, key_prefix="test", ttl_s=60)
        self.cache = TwoLevelCache(
            with_constants(CacheSettings(), local_ttl_s=LOCAL_TTL_S, **settings),
            clock,
            self.recorder.handle,
            make_keys(),
            shared,
        )

    def engine(self) -> ScriptedEngine:
        def words(request: GenerationRequest) -> Sequence[str]:
            self.generated.append(request.id)
            return self._words

        return ScriptedEngine(words, TIMES)

    @property
    def levels(self) -> list[CacheLevel]:
        return [event.level for event in self.recorder.recorded if isinstance(event, CacheHit)]

    def misses(self, level: CacheLevel) -> list[MissReason]:
        recorded: list[Event] = self.recorder.recorded
        return [event.reason for event in recorded if isinstance(event, CacheMiss) and event.level is level]


def run(
    scenario: Callable[[RunningService, Cached], Coroutine[Any, Any, None]],
    *,
    delay_s: float | None = None,
    scheduling: SchedulingSettings = FOUR_SLOTS,
    **settings: Any,
) -> Cached:
    """Run a scenario in virtual time, with a store that replies after `delay_s`, or without a store."""

    async def main() -> Cached:
        cached = Cached(None if delay_s is None else SlowStore(delay_s), **settings)
        async with running_service(
            cached.engine, LoopClock(), cache=cached.cache, recorder=cached.recorder, scheduling=scheduling
        ) as running:
            await scenario(running, cached)
        return cached

    return virtual_time.run(main())


async def text_of(running: RunningService, request_id: str, prefix: str, **fields: Any) -> str:
    return (await read(running.open(request_id, prefix, **({"caller": NAMED} | fields)))).text


def test_a_known_answer_takes_no_slot_and_supersedes() -> None:
    async def scenario(running: RunningService, _cached: Cached) -> None:
        assert await text_of(running, "first", "x = ") == "alpha beta"
        older = running.open("older", "y = ", caller=NAMED)
        now = running.service.now()
        known = await read(running.open("known", "x = alp", caller=NAMED))
        assert (known.text, known.reason) == ("ha beta", FinishReason.STOP)
        usage = known.end.usage
        assert usage == Usage(cache_level=CacheLevel.LOCAL, kept_prompt_tokens=3, kept_completion_tokens=4)
        assert usage.of_answer == Usage(3, 3, 4, cache_level=CacheLevel.LOCAL)
        assert running.service.now() == now
        assert (await read(older)).reason is FinishReason.SUPERSEDED
        marks = running.recorder.marks["known"]
        assert (marks.started, marks.first_output) == (None, now)

    cached = run(scenario)
    assert cached.generated == ["first", "older"]
    assert cached.levels == [CacheLevel.LOCAL]
    assert cached.recorder.ends["first"].usage.cache_level is CacheLevel.NONE


def test_an_overtaken_request_gets_no_known_answer() -> None:
    async def scenario(running: RunningService, _cached: Cached) -> None:
        await text_of(running, "first", "x = ", sequence=1)
        newer = running.open("newer", "y = ", caller=NAMED, sequence=3)
        overtaken = await read(running.open("overtaken", "x = ", caller=NAMED, sequence=2))
        assert (overtaken.text, overtaken.reason) == ("", FinishReason.SUPERSEDED)
        assert overtaken.end.usage.cache_level is CacheLevel.NONE
        await read(newer)

    run(scenario)


def test_the_answer_of_a_reattached_request_is_kept_from_its_generations_start() -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        running.open("first", "x = ", caller=NAMED)
        await asyncio.sleep(0.025)
        assert await text_of(running, "reattached", "x = alpha") == " beta"
        assert await text_of(running, "deleted", "x = al") == "pha beta"
        assert cached.generated == ["first"]

    run(scenario)


@pytest.mark.parametrize("outcome", [FinishReason.CANCELLED, FinishReason.SUPERSEDED])
def test_only_whole_answers_are_kept(outcome: FinishReason) -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        completion = running.open("part", "x = ", caller=NAMED)
        await asyncio.sleep(0.035)
        if outcome is FinishReason.CANCELLED:
            completion.cancel()
        else:
            await text_of(running, "other", "y = ")
        assert await text_of(running, "whole", "x = ") == "alpha beta"
        assert cached.levels == []

    run(scenario)


def test_an_answer_that_a_deadline_cut_is_not_kept() -> None:
    lines = [f"\n    a{i} = {i}" for i in range(40)]

    async def scenario(running: RunningService, cached: Cached) -> None:
        deadline = Deadline.after(0.2, running.service.now())
        cut = await text_of(running, "first", "def f():", max_tokens=50, deadline=deadline)
        whole = await text_of(running, "second", "def f():", max_tokens=50)
        assert (whole, cached.levels) == ("".join(lines), [])
        assert cut
        assert whole.startswith(cut)

    run(scenario, words=lines)


def test_redis_answers_a_request_that_computes_its_prompt() -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        await text_of(running, "first", "x = ")
        await asyncio.sleep(LOCAL_TTL_S)
        now = running.service.now()
        answer = await read(running.open("again", "x = al", caller=NAMED))
        assert running.service.now() == pytest.approx(now + 0.004)
        assert (answer.text, answer.reason) == ("pha beta", FinishReason.STOP)
        assert answer.end.usage.cache_level is CacheLevel.SHARED
        assert await text_of(running, "local", "x = alp") == "ha beta"
        assert cached.levels == [CacheLevel.SHARED, CacheLevel.LOCAL]

    cached = run(scenario, delay_s=0.004)
    assert cached.generated == ["first", "again"]  # the second one was aborted


def test_redis_answers_a_request_that_waits_in_the_queue() -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        await text_of(running, "first", "x = ")
        await asyncio.sleep(LOCAL_TTL_S)
        busy = running.open("busy", "y = ", caller=OTHER, trigger=Trigger.EXPLICIT)
        assert await text_of(running, "queued", "x = ") == "alpha beta"
        assert running.load == (1, 1, 0)
        await read(busy)
        assert cached.generated == ["first", "busy"]
        assert cached.levels == [CacheLevel.SHARED]

    run(scenario, delay_s=0.004, scheduling=ONE_SLOT)


@pytest.mark.parametrize(
    ("delay_s", "lookup_ms", "reason"), [(0.006, 5.0, MissReason.LATE), (0.04, 100.0, MissReason.UNUSED)]
)
def test_a_late_reply_changes_nothing(delay_s: float, lookup_ms: float, reason: MissReason) -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        await text_of(running, "first", "x = ")
        await asyncio.sleep(LOCAL_TTL_S)
        begin = running.service.now()
        assert await text_of(running, "again", "x = ") == "alpha beta"
        assert running.service.now() == pytest.approx(begin + 0.06)
        await asyncio.sleep(0.1)
        assert cached.misses(CacheLevel.SHARED)[-1] is reason
        assert cached.recorder.ends["again"].usage.cache_level is CacheLevel.NONE

    cached = run(scenario, delay_s=delay_s, lookup_ms=lookup_ms)
    assert cached.generated == ["first", "again"]


def test_redis_answers_requests_that_share_a_generation() -> None:
    async def scenario(running: RunningService, cached: Cached) -> None:
        await text_of(running, "first", "x = ")
        await asyncio.sleep(LOCAL_TTL_S)
        twin = dataclasses.replace(NAMED, session="twin")
        both = [running.open("one", "x = ", caller=NAMED), running.open("two", "x = ", caller=twin)]
        answers = [await read(each) for each in both]
        assert [answer.text for answer in answers] == ["alpha beta"] * 2
        assert cached.levels == [CacheLevel.SHARED] * 2
        assert cached.generated == ["first", "one"]

    run(scenario, delay_s=0.004, scheduling=dataclasses.replace(FOUR_SLOTS, lane="session"))
