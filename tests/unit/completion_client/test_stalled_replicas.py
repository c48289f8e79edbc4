"""A server that stalls in mid-answer and goes on: the answer is not lost, though the user goes elsewhere meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from replica_fakes import ONE_REGION, STOP, Clock, FakeReplica, fake_replicas, view_of

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, DeadlineExceededError, Endpoint, ReplicaSet, ServiceError
from tests.support.server import eventually

REQUEST = pb.CompleteRequest(prefix="x = ")
PREFETCH = pb.CompleteRequest(prefix="x = ", trigger=pb.TRIGGER_PREFETCH)
BUDGET_S = 8.0
SETTINGS = replace(ONE_REGION, silence_min_s=0.05, silence_max_s=0.1, check_timeout_s=60.0)


class Losses:
    def __init__(self) -> None:
        self.errors: list[ServiceError] = []

    def on_lost(self, error: ServiceError) -> None:
        self.errors.append(error)

    def on_reconnected(self, away_s: float) -> None:
        pass


@asynccontextmanager
async def stalling(other_address: str = "") -> AsyncIterator[tuple[FakeReplica, FakeReplica, ReplicaSet]]:
    """Yield a server whose first answer stalls after its first text, another, and the view of a user of both."""
    first = FakeReplica(pb.End(finish_reason=STOP, text=" beta"), first_texts={1: "alpha"})
    other = FakeReplica()
    async with (
        fake_replicas(first, other),
        view_of(first.endpoint, Endpoint(other_address or other.address), settings=SETTINGS, clock=Clock()) as view,
    ):
        await eventually(lambda: all(each.why or each.round_trip_ms is not None for each in view.regions.states()))
        first.may_answer.clear()
        yield first, other, view


async def test_a_session_goes_on_elsewhere_and_keeps_the_answer_that_has_begun() -> None:
    losses = Losses()
    async with stalling() as (first, other, view), view.session(listener=losses) as session:
        begun = session.submit_nowait(REQUEST, timeout_s=BUDGET_S)
        assert await anext(aiter(begun)) == "alpha"
        prefetch = session.submit_nowait(PREFETCH, timeout_s=BUDGET_S)
        await eventually(lambda: first.sequences("complete") == [1, 2])
        first.stall()
        assert (await prefetch.result()).text == "text"
        assert not begun.is_done
        first.resume()
        completion = await begun.result()
        assert (completion.finish_reason, completion.text) == ("stop", "alpha beta")
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == "text"
        await eventually(lambda: first.seen == [("complete", 1), ("complete", 2), ("cancel", 2)])
        assert other.seen == [("complete", 2), ("complete", 3)]
    assert losses.errors == []


async def test_the_request_after_a_stall_goes_elsewhere() -> None:
    async with stalling() as (first, other, view), view.session() as session:
        begun = session.submit_nowait(REQUEST, timeout_s=BUDGET_S)
        await anext(aiter(begun))
        first.stall()
        await eventually(lambda: view.endpoint == other.endpoint)
        assert not begun.is_done
        assert session.is_connected
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == "text"
        assert (await begun.result()).finish_reason == "superseded"
        assert (first.sequences("complete"), other.sequences("complete")) == ([1], [2])


async def test_a_stall_without_another_server_fails_no_request() -> None:
    async with stalling("127.0.0.1:1") as (first, _, view), view.session() as session:
        begun = session.submit_nowait(REQUEST, timeout_s=BUDGET_S)
        await anext(aiter(begun))
        prefetch = session.submit_nowait(PREFETCH, timeout_s=BUDGET_S)
        await eventually(lambda: first.sequences("complete") == [1, 2])
        first.stall()
        await eventually(lambda: first.num_sessions == 2)  # for the next request
        first.resume()
        assert [(await each.result()).text for each in (begun, prefetch)] == ["alpha beta", " beta"]
        assert first.seen == [("complete", 1), ("complete", 2)]


async def test_an_answer_that_never_goes_on_fails() -> None:
    losses = Losses()
    async with stalling() as (first, other, view), view.session(listener=losses) as session:
        begun = session.submit_nowait(REQUEST)
        await anext(aiter(begun))
        first.stall()
        with pytest.raises(ConnectionLostError, match=f"{first.address} has sent nothing for"):
            await begun.result()
        assert len(losses.errors) == 1
        await eventually(lambda: session.is_connected)
        assert (await session.complete(REQUEST)).text == "text"
        limited = session.submit_nowait(REQUEST, timeout_s=0.5)
        assert (await limited.result()).text == "text"
        assert (first.sequences("complete"), other.sequences("complete")) == ([1], [2, 3])


async def test_an_answer_that_does_not_go_on_before_its_deadline_ends_then() -> None:
    losses = Losses()
    async with stalling() as (first, other, view), view.session(listener=losses) as session:
        begun = session.submit_nowait(REQUEST, timeout_s=0.6)
        await anext(aiter(begun))
        first.stall()
        with pytest.raises(DeadlineExceededError):
            await begun.result()
        assert (await session.complete(REQUEST)).text == "text"
        assert other.sequences("complete") == [2]
    assert losses.errors == []


async def test_a_call_keeps_the_answer_that_has_begun() -> None:
    async with stalling() as (first, other, view):
        texts: list[str] = []
        asking = asyncio.create_task(view.complete(REQUEST, timeout_s=BUDGET_S, on_text=texts.append))
        await eventually(lambda: texts == ["alpha"])
        first.stall()
        await eventually(lambda: view.endpoint == other.endpoint)
        assert (await view.complete(REQUEST, timeout_s=BUDGET_S)).address == other.address
        assert not asking.done()
        first.resume()
        completion = await asking
        assert (completion.text, completion.address, completion.num_sent) == ("alpha beta", first.address, 1)
        assert (len(first.metadata), len(other.metadata)) == (1, 1)


async def test_a_call_that_never_goes_on_fails() -> None:
    async with stalling() as (first, other, view):
        texts: list[str] = []
        asking = asyncio.create_task(view.complete(REQUEST, on_text=texts.append))
        await eventually(lambda: texts == ["alpha"])
        first.stall()
        with pytest.raises(ConnectionLostError, match=f"{first.address} has sent nothing for"):
            await asking
        assert view.endpoint == other.endpoint
        assert other.metadata == []
