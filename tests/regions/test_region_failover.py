"""Clients of three regions, 5, 70 and 140 ms away: the nearest is used, left when it fails, and returned to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import (
    Completion,
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    EndpointState,
    Health,
    Move,
    Regions,
    RegionSettings,
    ServiceError,
    SessionSettings,
    UnavailableError,
)
from completion_server.engine.scripted.engine import ServiceTimes
from tests.support.fault_proxy import Delay
from tests.support.regions import ENDLESS_REQUEST, TEXT, Region, list_of, running_regions, script
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


@dataclass
class Three:
    """The regions, and a user's view of them."""

    near: Region
    middle: Region
    far: Region
    regions: Regions
    view: CompletionClient

    def health(self, region: Region) -> Health:
        return next(each.health for each in self.regions.states() if each.endpoint.address == region.address)

    async def ask(self) -> str:
        """Ask by a call; return the address of the server that answers."""
        completion = await self.view.complete(REQUEST, timeout_s=BUDGET_S)
        assert completion.text == TEXT
        return completion.address or ""


def measured(state: EndpointState) -> tuple[str, int, bool]:
    return state.endpoint.address, state.tier, state.round_trip_ms is not None


@asynccontextmanager
async def three_regions(settings: RegionSettings = SETTINGS) -> AsyncIterator[Three]:
    """Yield the regions when their order is known."""
    async with (
        running_regions(DISTANCES_MS) as (far, near, middle),
        Regions(list_of((far, near, middle)), settings=settings) as regions,
        CompletionClient(regions, user="ada") as view,
    ):
        expected = [(each.address, tier, True) for tier, each in enumerate((near, middle, far))]
        await eventually(lambda: list(map(measured, regions.states())) == expected)
        yield Three(near, middle, far, regions, view)


async def test_the_nearest_is_chosen_and_all_distances_are_known() -> None:
    async with three_regions() as three:
        views = [CompletionClient(three.regions, user=f"user {number}") for number in range(10)]
        completions = await asyncio.gather(*(view.complete(REQUEST, timeout_s=BUDGET_S) for view in views))
        assert {(each.text, each.address, each.num_sent) for each in completions} == {(TEXT, three.near.address, 1)}
        for state, least_ms in zip(three.regions.states(), sorted(DISTANCES_MS), strict=True):
            assert least_ms <= (state.round_trip_ms or 0.0) < least_ms + 200  # on a busy machine


@dataclass
class TypingUser:
    """Sends a request every now and then, in a session."""

    completions: list[Completion] = field(default_factory=list)
    failed_at_s: list[float] = field(default_factory=list)
    moves: list[tuple[float, Move]] = field(default_factory=list)

    async def type(self, client: CompletionClient, every_s: float) -> None:
        now = asyncio.get_running_loop().time
        async with client.session(settings=QUICK, on_move=lambda move: self.moves.append((now(), move))) as session:
            while True:
                asked_at_s = now()
                try:
                    self.completions.append(await session.complete(REQUEST, timeout_s=BUDGET_S))
                except ServiceError:
                    self.failed_at_s.append(asked_at_s)
                await asyncio.sleep(every_s)


@pytest.mark.serial
@pytest.mark.full
async def test_users_who_type_go_on_elsewhere_and_return_one_after_another() -> None:
    """The near server is killed under 24 users, and comes back."""
    spread_s, now = 2.0, asyncio.get_running_loop().time
    settings = RegionSettings(recheck_s=0.05, check_interval_s=0.5, return_spread_s=spread_s, users_per_connection=8)
    async with three_regions(settings) as three, asyncio.TaskGroup() as group:
        users = [TypingUser() for _ in range(24)]
        clients = [CompletionClient(three.regions, user=f"user {number}") for number in range(24)]
        tasks = [group.create_task(user.type(each, 0.1)) for user, each in zip(users, clients, strict=True)]
        await eventually(lambda: all(len(user.completions) >= 5 for user in users))
        three.near.kill()
        killed_at_s = now()
        await eventually(lambda: all(len(user.completions) >= 12 for user in users))
        await three.near.heal()
        healed_at_s = now()
        await eventually(lambda: all(len(user.moves) == 2 for user in users))
        for task in tasks:
            task.cancel()
        for user in users:
            assert {each.text for each in user.completions} == {TEXT}
            assert all(at_s <= killed_at_s for at_s in user.failed_at_s), "only requests in flight may be lost"
            (_, left), (returned_at_s, returned) = user.moves
            assert (left.before.address, left.after.address) == (three.near.address, three.middle.address)
            assert (returned.after.address, returned.why) == (three.near.address, "")
            assert healed_at_s < returned_at_s
        times_s = sorted(user.moves[1][0] for user in users)
        assert times_s[-3] - times_s[2] > spread_s / 3, "they return one after another"
        assert three.far.num_answered == 0


@pytest.mark.parametrize("in_session", [False, True], ids=["calls", "session"])
async def test_a_server_that_goes_silent_is_left_within_the_budget_of_one_request(in_session: bool) -> None:
    async with three_regions() as three, three.view.session(settings=QUICK) as session:
        ask = session.complete if in_session else three.view.complete
        near, middle = three.near, three.middle
        await ask(REQUEST, timeout_s=BUDGET_S)
        assert near.num_answered == 1
        near.swallow()
        for num_middle in (1, 2):
            assert (await ask(REQUEST, timeout_s=BUDGET_S)).text == TEXT
            assert middle.num_answered == num_middle
        await eventually(lambda: three.health(near) is Health.FAILED)
        await near.heal()
        near.proxy.reset_all()
        await eventually(lambda: three.view.endpoint.address == near.address)
        assert three.health(near) is Health.USABLE
        await ask(REQUEST, timeout_s=BUDGET_S)
        assert near.num_answered == 2


async def test_a_silent_request_moves_alone_until_a_patient_check_has_failed() -> None:
    async with three_regions(replace(SETTINGS, check_timeout_s=60.0)) as three:
        await three.ask()
        three.near.swallow()
        assert await three.ask() == three.view.endpoint.address == three.middle.address
        assert CompletionClient(three.regions, user="bob").endpoint.address == three.near.address
        assert three.health(three.near) is Health.USABLE


@pytest.mark.full
async def test_an_abandoned_attempt_is_cancelled_on_its_server() -> None:
    """Requests arrive, answers do not: the server computes for nobody until the client gives it up."""
    async with three_regions() as three:
        near, middle = three.near.engine.stats, three.middle.engine.stats
        await three.ask()
        three.near.proxy.faults.reply_delay = Delay(60.0)
        texts: list[str] = []
        call = asyncio.create_task(three.view.complete(ENDLESS_REQUEST, timeout_s=BUDGET_S, on_text=texts.append))
        await eventually(lambda: near().num_running == 1)
        await eventually(lambda: middle().num_running == 1)
        await eventually(lambda: near().num_running == 0)
        await eventually(lambda: len(texts) > 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: middle().num_running == 0)
        assert "".join(texts).startswith(" w0 w1")


@pytest.mark.full
async def test_a_server_that_is_only_slow_is_not_left() -> None:
    """It answers health checks, so the request waits longer than a server may be silent."""
    slow = ServiceTimes(prefill_base_s=0.5, decode_base_s=0.001)
    async with (
        running_regions((5.0, 70.0), make_engine=lambda: endless_engine(script, slow)) as (near, middle),
        Regions(list_of((near, middle)), settings=RegionSettings(silence_max_s=0.2)) as regions,
        CompletionClient(regions, user="ada") as view,
        view.session() as session,
    ):
        completion = await view.complete(REQUEST, timeout_s=BUDGET_S)
        assert (completion.text, completion.address, completion.num_sent) == (TEXT, near.address, 1)
        assert completion.total_ms > 500
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
        assert middle.num_answered == 0


@pytest.mark.parametrize("in_session", [False, True], ids=["calls", "session"])
async def test_an_answer_that_has_begun_is_not_begun_again_elsewhere(in_session: bool) -> None:
    async with three_regions() as three, three.view.session(settings=QUICK) as session:
        texts: list[str] = []
        if in_session:
            pending = session.submit_nowait(ENDLESS_REQUEST, timeout_s=BUDGET_S)
            call = asyncio.create_task(pending.result())
            texts.append(await anext(aiter(pending)))
        else:
            call = asyncio.create_task(three.view.complete(ENDLESS_REQUEST, timeout_s=BUDGET_S, on_text=texts.append))
            await eventually(lambda: bool(texts))
        three.near.kill()
        with pytest.raises(ServiceError):
            await call
        assert three.middle.engine.stats().num_running == 0
        assert await three.ask() == three.middle.address


async def test_a_draining_server_is_left_without_the_loss_of_a_request() -> None:
    losses = Losses()
    async with three_regions() as three, three.view.session(settings=QUICK, listener=losses) as session:
        prefetch = pb.CompleteRequest()  # a newer typed request ends an older one, but no prefetch
        prefetch.CopyFrom(ENDLESS_REQUEST)
        prefetch.trigger = pb.TRIGGER_PREFETCH
        pending = session.submit_nowait(prefetch)
        texts = aiter(pending)
        await anext(texts)
        three.near.server.app.drain(30.0)
        await eventually(lambda: three.near.server.app.is_draining)
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
        assert await three.ask() == three.middle.address
        assert three.middle.num_answered == 2
        for _ in range(3):
            assert await anext(texts)
        assert losses.errors == []
        pending.cancel_nowait()
        assert (await pending.result()).finish_reason == "cancelled"


async def test_when_all_are_silent_or_down_the_error_comes_in_time_and_names_each() -> None:
    async with three_regions() as three, three.view.session(settings=QUICK) as session:
        servers = (three.near, three.middle, three.far)
        await three.ask()
        for region in servers:
            region.swallow()
        with pytest.raises((ConnectionLostError, DeadlineExceededError)):
            await three.view.complete(REQUEST, timeout_s=0.6)
        for region in servers:
            region.kill()
        with pytest.raises(UnavailableError) as caught:
            await three.view.complete(REQUEST, timeout_s=1.0)
        assert all(region.address in caught.value.message for region in servers)
        await eventually(lambda: not session.is_connected)
        with pytest.raises(ConnectionLostError) as caught:
            session.submit_nowait(REQUEST)
        assert all(region.address in caught.value.message for region in servers)
        for region in servers:
            await region.heal()
        await eventually(lambda: session.is_connected)
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == TEXT
