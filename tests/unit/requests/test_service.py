"""The service, with a prompt builder that records the thread of each call."""

import asyncio
import dataclasses
import itertools
import threading

import pytest

from completion_server.config import load_config
from completion_server.core.clock import Deadline, MonotonicClock
from completion_server.core.errors import ShedError
from completion_server.core.events import Event
from completion_server.core.next_edit import NextEdit, RecentEdit
from completion_server.core.outcome import FinishReason, ShedReason
from completion_server.core.request import Caller, Mode, Trigger
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.scheduling.queue import newest_first
from completion_server.requests.scheduling.requests import LiveRequest
from completion_server.requests.scheduling.shedding import Shedding
from completion_server.requests.settings import ServingSettings, make_book
from completion_server.text.prompt.edits.answers import EditAnswer
from completion_server.text.prompt.edits.region import Reach, find_region
from completion_server.text.prompt.edits.zeta import Zeta2
from tests.support.clocks import ManualClock
from tests.support.constants import with_constants
from tests.support.recorded_book import RecordedBook
from tests.support.services import (
    FOUR_SLOTS,
    REQUEST,
    EventRecorder,
    RecordedEdits,
    RunningService,
    in_virtual_time,
    read,
    running_service,
)

CLOCK = MonotonicClock()


def quick_engine() -> Engine:
    return ScriptedEngine(lambda _request: ("a", "b", "c"))


def slow_engine() -> Engine:
    """Return an engine that generates a token every millisecond, without an end."""
    return ScriptedEngine(lambda _request: (f"a{n} " for n in itertools.count()), ServiceTimes(decode_base_s=1e-3))


async def test_a_short_prompt_is_built_on_the_event_loop_and_a_long_one_in_a_thread() -> None:
    async with running_service(quick_engine, CLOCK) as running:
        for request_id, prefix in (("short", "x = "), ("long", "x" * 100_000)):
            answer = await read(running.open(request_id, prefix))
            assert (answer.text, answer.reason) == ("abc", FinishReason.STOP)
    here = threading.get_ident()
    assert running.prompts.threads[0] == here
    assert running.prompts.threads[1] != here
    assert running.recorder.ended == [("short", FinishReason.STOP), ("long", FinishReason.STOP)]


@pytest.mark.parametrize(
    ("diff", "is_here"), [("@@ -1 +1 @@\n-a\n+b\n", True), ("@@ -1 +1 @@\n+" + "a" * 50_000, False)]
)
async def test_large_edits_are_built_into_a_prompt_in_a_thread(diff: str, is_here: bool) -> None:
    request = dataclasses.replace(REQUEST, mode=Mode.NEXT_EDIT, next_edit=NextEdit(0, (RecentEdit("a.py", diff),)))
    region = find_region(request, Reach(1, 1), (), 512)
    assert region is not None
    edits = RecordedEdits(rules=EditAnswer(Zeta2(), region, 7))
    async with running_service(quick_engine, CLOCK, edits=edits) as running:
        await read(running.service.open(request))
    assert (edits.threads == [threading.get_ident()]) is is_here


def test_a_request_over_a_limit_is_not_read() -> None:
    edits = RecordedEdits()
    admission = with_constants(AdmissionSettings(user_requests_per_s=1), request_burst_s=1)

    async def scenario(running: RunningService) -> None:
        for request_id in ("within", "over"):
            answer = running.open(request_id, "x = ", mode=Mode.NEXT_EDIT, next_edit=NextEdit())
            reasons.append((await read(answer)).reason)

    reasons: list[FinishReason] = []
    in_virtual_time(scenario, quick_engine, edits=edits, admission=admission)
    assert reasons == [FinishReason.STOP, FinishReason.SHED]
    assert edits.asked == ["within"]


def test_under_loop_lag_only_explicit_requests_are_served() -> None:
    clock = ManualClock(-1.0)
    loop_lag = LoopLagMonitor(0.05, clock)  # looked at the clock a second before it all began

    async def scenario(running: RunningService) -> None:
        explicit = running.open("explicit", "x", trigger=Trigger.EXPLICIT)
        other = Caller("another", "s")
        refused = await read(running.open("refused", "x", caller=other))
        assert (refused.text, refused.reason) == ("", FinishReason.SHED)
        assert refused.end.outcome.shed_reason is ShedReason.OVERLOAD
        await read(running.open("newer", "xy", trigger=Trigger.AUTOMATIC))
        assert (await read(explicit)).reason is FinishReason.SUPERSEDED  # its user has typed on
        clock.at = running.service.now()
        loop_lag.tick()
        assert (await read(running.open("later", "x", caller=other))).reason is FinishReason.LENGTH

    in_virtual_time(scenario, slow_engine, loop_lag=loop_lag)


def test_a_message_that_needs_no_engine_is_charged_like_a_request() -> None:
    clock = ManualClock(-1.0)
    loop_lag = LoopLagMonitor(0.05, clock)
    admission = AdmissionSettings(user_requests_per_s=1, users_per_peer=1)
    ann, bob = (Caller(name, "s", peer="192.0.2.1") for name in ("ann", "bob"))

    async def scenario(running: RunningService) -> None:
        service = running.service
        service.charge(ann)
        service.charge(ann)
        with pytest.raises(ShedError, match="users_per_peer"):
            service.charge(bob)
        clock.at = service.now()
        loop_lag.tick()
        service.charge(bob)  # over the limit of the address, but there is time for it
        with pytest.raises(ShedError, match="user_requests_per_s") as refusal:
            service.charge(ann)
        assert refusal.value.retry_after_ms == pytest.approx(1000, abs=1)
        assert (await read(running.open("ann", "x", caller=ann))).reason is FinishReason.SHED

    in_virtual_time(scenario, quick_engine, loop_lag=loop_lag, admission=admission)


def test_a_lane_belongs_to_a_user_or_a_session_or_one_request() -> None:
    def reasons_with(**settings: object) -> list[FinishReason]:
        reasons: list[FinishReason] = []

        async def scenario(running: RunningService) -> None:
            answers = [running.open(f"r{s}", "x", caller=Caller("u", s), sequence=1) for s in ("a", "b")]
            answers.append(running.open("r3", "y", caller=Caller("u", "b"), sequence=2))
            reasons.extend([(await read(each)).reason for each in answers])

        in_virtual_time(scenario, slow_engine, scheduling=dataclasses.replace(FOUR_SLOTS, **settings))  # type: ignore[arg-type]
        return reasons

    superseded, served = FinishReason.SUPERSEDED, FinishReason.LENGTH
    assert reasons_with() == [superseded, superseded, served]
    assert reasons_with(lane="session") == [served, superseded, served]
    assert reasons_with(supersede=False) == [served, served, served]


def test_the_ttft_deadline_is_the_budget_or_the_calls_deadline() -> None:
    async def scenario(running: RunningService) -> None:
        await asyncio.sleep(1.0)
        patient = running.open("patient", "x", trigger=Trigger.EXPLICIT, deadline=Deadline(100.0))
        assert (patient.trigger, patient.arrived_at, patient.ttft_deadline) == (Trigger.EXPLICIT, 1.0, 11.0)
        hurried = running.open("hurried", "x", deadline=Deadline(2.0))
        assert (hurried.deadline, hurried.ttft_deadline) == (Deadline(2.0), 2.0)

    in_virtual_time(scenario, slow_engine)


def test_a_newer_request_on_another_replica_supersedes() -> None:
    async def scenario(running: RunningService) -> None:
        older = running.open("older", "x")
        running.service.runner.supersede_nowait(older.lane, 1)
        assert (await read(older)).reason is FinishReason.SUPERSEDED

    in_virtual_time(scenario, slow_engine)


def test_a_listener_that_raises_fails_no_request() -> None:
    class Fails(EventRecorder):
        def handle(self, event: Event) -> None:
            super().handle(event)
            raise ZeroDivisionError

    async def scenario(opened: RunningService) -> None:
        older, newer = opened.open("older", "x"), opened.open("newer", "xa")
        assert (await read(older)).reason is FinishReason.SUPERSEDED
        assert (await read(newer)).reason is FinishReason.LENGTH
        assert len(opened.recorder.ended) == 2

    in_virtual_time(scenario, slow_engine, recorder=Fails())


@pytest.mark.parametrize(("max_slots", "num_slots"), [(1, 1), (2, 2), (32, 8)])
def test_every_key_reaches_the_book(max_slots: int, num_slots: int) -> None:
    overrides = (
        "scheduling.order=newest_first", "shed.when=predicted", "scheduling.max_queued=7",
        f"scheduling.max_slots={max_slots}",
    )  # fmt: skip
    config = load_config(None, overrides, {})
    book = make_book(ServingSettings(config.admission, config.scheduling, config.shed), RecordedBook(1, 1))
    assert (book.order, book.shedding) == (newest_first, Shedding.PREDICTED)
    assert (book.num_slots, book.max_queued, book.max_retry_after_ms) == (num_slots, 7, 1000)


class Announced:
    """Records the sessions of which other replicas are told. Implements `ReplicaGroup`."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stamp(self) -> int:
        return 1 + len(self.told)

    def announce(self, live: LiveRequest) -> None:
        self.told.append(live.session)


async def test_replicas_are_told_of_callers_whom_they_would_know() -> None:
    others = Announced()
    callers = (
        Caller("", "nobody", connection="192.0.2.7:1", peer="192.0.2.7"),
        Caller("ada", "elsewhere", peer="192.0.2.7"),
        Caller("ada", "within the host", peer="127.0.0.1"),
        Caller("ada", "verified", is_verified=True),
    )
    async with running_service(quick_engine, CLOCK, replicas=others) as running:
        for number, caller in enumerate(callers):
            await read(running.service.open(dataclasses.replace(REQUEST, id=f"r{number}", caller=caller)))
        prefetch = dataclasses.replace(REQUEST, id="prefetch", caller=callers[-1], trigger=Trigger.PREFETCH)
        await read(running.service.open(prefetch))
        in_its_own_lane = dataclasses.replace(REQUEST, id="lane", caller=callers[-1], lane="document 1")
        await read(running.service.open(in_its_own_lane))
    assert others.told == ["elsewhere", "verified"]
