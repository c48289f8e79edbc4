"""Clients of three regions, 5, 70 and 140 ms away: the nearest is used, left when it fails, and returned to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Health,
    Move,
    Regions,
    RegionSettings,
    ReplicaStream,
    ServiceError,
    SessionSettings,
    UnavailableError,
)
from completion_server.engine.scripted.engine import ServiceTimes
from tests.support.fault_proxy import Delay
from tests.support.regions import ENDLESS_REQUEST, TEXT, Answer, Region, list_of, running_regions, script
from tests.support.replica_fakes import Losses
from tests.support.server import endless_engine, eventually

DISTANCES_MS = (140.0, 5.0, 70.0)
"""In this order, so that the list does not give the nearest away."""
BUDGET_S = 8.0
"""Long, so that a busy machine fails no test: what a share of it is, `silence_max_s` bounds."""
REQUEST = pb.CompleteRequest(prefix="x = ")
SETTINGS = RegionSettings(
    recheck_s=0.05,
    check_interval_s=0.5,
    check_timeout_s=1.0,
    silence_max_s=0.4,
    return_spread_s=0.0,
    move_spread_s=0.2,
    window_s=1000.0,  # a busy machine only lengthens samples, so the shortest of the test is the right one
    change_after_s=0.0,
)
QUICK = SessionSettings(backoff_min_s=0.01, backoff_max_s=0.05)


@asynccontextmanager
async def three_regions(
    settings: RegionSettings = SETTINGS,
) -> AsyncIterator[tuple[Region, Region, Region, Regions, CompletionClient]]:
    """Yield the near, the middle and the far region, and a user's view of them, when their order is known."""
    async with (
        running_regions(DISTANCES_MS) as (far, near, middle),
        Regions(list_of((far, near, middle)), settings=settings) as regions,
        CompletionClient(regions, user="ada") as view,
    ):
        await ordered(regions, near, middle, far)
        yield near, middle, far, regions, view


def health_of(regions: Regions, region: Region) -> Health:
    return next(each.health for each in regions.states() if each.endpoint.address == region.address)


async def ordered(regions: Regions, *by_distance: Region) -> None:
    """Wait until the round trips of all are measured, and put each in a tier of its own, in this order."""
    expected = [(each.address, tier) for tier, each in enumerate(by_distance)]

    def found() -> list[tuple[str, int]]:
        return [(each.endpoint.address, each.tier) for each in regions.states() if each.round_trip_ms is not None]

    await eventually(lambda: found() == expected)


async def test_the_nearest_is_chosen_and_all_distances_are_known() -> None:
    async with three_regions() as (near, _middle, _far, regions, _view):
        views = [CompletionClient(regions, user=f"user {number}") for number in range(10)]
        completions = await asyncio.gather(*(view.complete(REQUEST, timeout_s=BUDGET_S) for view in views))
        assert {each.text for each in completions} == {TEXT}
        assert {(each.address, each.num_sent) for each in completions} == {(near.address, 1)}
        for state, least_ms in zip(regions.states(), sorted(DISTANCES_MS), strict=True):
            assert least_ms <= (state.round_trip_ms or 0.0) < least_ms + 200  # on a busy machine


@dataclass
class TypingUser:
    """Sends a request every now and then, on a stream of its own."""

    view: CompletionClient
    number: int
    stream: ReplicaStream = field(init=False)
    answers: list[Answer] = field(default_factory=list)
    moves: list[tuple[float, Move]] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = asyncio.get_running_loop().time
        self.stream = self.view.stream(settings=QUICK, on_move=lambda move: self.moves.append((now(), move)))

    async def type(self, every_s: float) -> None:
        now = asyncio.get_running_loop().time
        self.stream.start_nowait()
        await asyncio.sleep(every_s * (self.number % 10) / 10)
        for sequence in range(1, 1_000_000):
            answer = Answer(self.stream, sequence, now(), now=now)
            request = pb.CompleteRequest(session_id=f"s{self.number}", sequence=sequence, prefix="x = ")
            self.answers.append(answer)
            self.stream.send_nowait(request, answer, BUDGET_S)
            await asyncio.sleep(every_s)

    def next_after(self, at_s: float) -> Answer:
        return next(each for each in self.answers if each.sent_at_s >= at_s)


@asynccontextmanager
async def typing(regions: Regions, num_users: int, every_s: float) -> AsyncIterator[list[TypingUser]]:
    users = [TypingUser(CompletionClient(regions, user=f"user {number}"), number) for number in range(num_users)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(user.type(every_s)) for user in users]
            yield users
            for task in tasks:
                task.cancel()
    finally:
        for user in users:
            await asyncio.gather(*user.stream.close_nowait(), return_exceptions=True)


@pytest.mark.serial
@pytest.mark.full
async def test_users_who_type_go_on_elsewhere_and_return_one_after_another() -> None:
    """The near server is killed under 24 users, and comes back."""
    spread_s, now = 2.0, asyncio.get_running_loop().time
    settings = RegionSettings(recheck_s=0.05, check_interval_s=0.5, return_spread_s=spread_s, users_per_connection=8)
    async with three_regions(settings) as (near, middle, far, regions, _):
        async with typing(regions, 24, 0.15) as users:
            await eventually(lambda: all(len(user.answers) >= 5 for user in users))
            near.kill()
            killed_at_s = now()
            await eventually(lambda: all(len(user.answers) >= 12 for user in users))
            await near.heal()
            healed_at_s = now()
            await eventually(lambda: all(len(user.moves) == 2 for user in users))
            await asyncio.sleep(1.0)
        answers = [each for user in users for each in user.answers if each.num_ends]
        assert all(each.num_ends == 1 for each in answers)
        assert {each.text for each in answers if each.finish_reason == pb.FINISH_REASON_STOP} == {TEXT}
        for user in users:
            first = user.next_after(killed_at_s)
            assert (first.address, first.text) == (middle.address, TEXT)
            assert first.done_at_s - first.sent_at_s < 3.0
            (_, left), (returned_at_s, returned) = user.moves
            assert (left.before.address, left.after.address) == (near.address, middle.address)
            assert (returned.before.address, returned.after.address, returned.why) == (middle.address, near.address, "")
            assert healed_at_s < returned_at_s < healed_at_s + spread_s + 2.0
            assert user.answers[-3].address == near.address
        failed = [each for each in answers if each.failure]
        assert all(each.sent_at_s <= killed_at_s for each in failed), "only requests in flight may be lost"
        times_s = sorted(user.moves[1][0] for user in users)
        assert times_s[-3] - times_s[2] > spread_s / 3, "they return one after another"
        assert far.num_answered == 0


@pytest.mark.parametrize("in_session", [False, True], ids=["calls", "session"])
async def test_a_server_that_goes_silent_is_left_within_the_budget_of_one_request(in_session: bool) -> None:
    async with three_regions() as (near, middle, _, regions, view), view.session(settings=QUICK) as session:
        ask = session.complete if in_session else view.complete
        await ask(REQUEST, timeout_s=BUDGET_S)
        assert near.num_answered == 1
        near.swallow()
        for num_middle in (1, 2):
            completion = await ask(REQUEST, timeout_s=BUDGET_S)
            assert completion.text == TEXT
            assert middle.num_answered == num_middle
        await eventually(lambda: health_of(regions, near) is Health.FAILED)
        await near.heal()
        near.proxy.reset_all()
        await eventually(lambda: view.endpoint.address == near.address)
        assert health_of(regions, near) is Health.USABLE
        await ask(REQUEST, timeout_s=BUDGET_S)
        assert near.num_answered == 2


async def test_a_silent_request_moves_alone_until_a_patient_check_has_failed() -> None:
    settings = replace(SETTINGS, check_timeout_s=60.0)
    async with three_regions(settings) as (near, middle, _, regions, view):
        await view.complete(REQUEST, timeout_s=BUDGET_S)
        near.swallow()
        completion = await view.complete(REQUEST, timeout_s=BUDGET_S)
        assert (completion.address, completion.num_sent) == (middle.address, 2)
        assert view.endpoint.address == middle.address
        assert CompletionClient(regions, user="bob").endpoint.address == near.address
        assert health_of(regions, near) is Health.USABLE


@pytest.mark.full
async def test_an_abandoned_attempt_is_cancelled_on_its_server() -> None:
    """Requests arrive, answers do not: the server computes for nobody until the client gives it up."""
    async with three_regions() as (near, middle, _, _, view):
        await view.complete(REQUEST, timeout_s=BUDGET_S)
        near.proxy.faults.reply_delay = Delay(60.0)
        texts: list[str] = []
        asking = asyncio.create_task(view.complete(ENDLESS_REQUEST, timeout_s=BUDGET_S, on_text=texts.append))
        await eventually(lambda: near.engine.stats().num_running == 1)
        await eventually(lambda: middle.engine.stats().num_running == 1)
        await eventually(lambda: near.engine.stats().num_running == 0)
        await eventually(lambda: len(texts) > 2)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: middle.engine.stats().num_running == 0)
        assert "".join(texts).startswith(" w0 w1")


@pytest.mark.full
async def test_a_server_that_is_only_slow_is_not_left() -> None:
    """It answers health checks, so the request waits longer than a server may be silent."""
    slow = ServiceTimes(prefill_base_s=0.5, decode_base_s=0.001)
    settings = RegionSettings(silence_max_s=0.2)
    async with (
        running_regions((5.0, 70.0), make_engine=lambda: endless_engine(script, slow)) as (near, middle),
        CompletionClient(Regions(list_of((near, middle)), settings=settings), user="ada") as view,
        view.session() as session,
    ):
        completion = await view.complete(REQUEST, timeout_s=BUDGET_S)
        assert (completion.text, completion.address, completion.num_sent) == (TEXT, near.address, 1)
        assert completion.total_ms > 500
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
        assert middle.num_answered == 0
        await view.regions.aclose()


@pytest.mark.parametrize("in_session", [False, True], ids=["calls", "session"])
async def test_an_answer_that_has_begun_is_not_begun_again_elsewhere(in_session: bool) -> None:
    async with three_regions() as (near, middle, _, _, view), view.session(settings=QUICK) as session:
        texts: list[str] = []
        if in_session:
            pending = session.submit_nowait(ENDLESS_REQUEST, timeout_s=BUDGET_S)
            asking = asyncio.create_task(pending.result())
            texts.append(await anext(aiter(pending)))
        else:
            asking = asyncio.create_task(view.complete(ENDLESS_REQUEST, timeout_s=5.0, on_text=texts.append))
            await eventually(lambda: bool(texts))
        near.kill()
        with pytest.raises(ServiceError):
            await asking
        assert "".join(texts).startswith(" w0")
        assert middle.engine.stats().num_running == 0
        assert (await view.complete(REQUEST, timeout_s=BUDGET_S)).address == middle.address


async def test_a_draining_server_is_left_without_the_loss_of_a_request() -> None:
    losses = Losses()
    async with (
        three_regions() as (near, middle, _, _, view),
        view.session(settings=QUICK, listener=losses) as session,
    ):
        prefetch = pb.CompleteRequest()  # a newer typed request ends an older one, but no prefetch
        prefetch.CopyFrom(ENDLESS_REQUEST)
        prefetch.trigger = pb.TRIGGER_PREFETCH
        pending = session.submit_nowait(prefetch)
        texts = aiter(pending)
        await anext(texts)
        near.server.app.drain(30.0)
        await eventually(lambda: near.server.app.is_draining)
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
        assert (await view.complete(REQUEST, timeout_s=BUDGET_S)).address == middle.address
        assert middle.num_answered == 2
        assert not pending.is_done
        for _ in range(3):
            assert await anext(texts)
        assert losses.errors == []
        pending.cancel_nowait()
        assert (await pending.result()).finish_reason == "cancelled"


async def test_when_all_are_silent_or_down_the_error_comes_in_time_and_names_each() -> None:
    async with three_regions() as (*three, _, view), view.session(settings=QUICK) as session:
        await view.complete(REQUEST, timeout_s=BUDGET_S)
        for region in three:
            region.swallow()
        with pytest.raises((ConnectionLostError, DeadlineExceededError)):
            await view.complete(REQUEST, timeout_s=0.6)
        for region in three:
            region.kill()
        with pytest.raises(UnavailableError) as caught:
            await view.complete(REQUEST, timeout_s=1.0)
        assert all(region.address in caught.value.message for region in three)
        await eventually(lambda: not session.is_connected)
        with pytest.raises(ConnectionLostError) as caught:
            session.submit_nowait(REQUEST)
        assert all(region.address in caught.value.message for region in three)
        for region in three:
            await region.heal()
        await eventually(lambda: session.is_connected)
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
