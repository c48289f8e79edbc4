"""The requests of a session that moves between servers, of which one stalls or fails."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import add_CompletionServiceServicer_to_server
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    RegionSettings,
    ServiceError,
    Session,
    UnavailableError,
    make_traceparent,
)
from completion_client.session import PendingCompletion
from tests.support.replica_fakes import ONE_REGION, STOP, Clock, FakeReplica, Losses, fake_replicas, pass_over, view_of
from tests.support.server import eventually

REQUEST = pb.CompleteRequest(prefix="x = ")
PREFETCH = pb.CompleteRequest(prefix="x = ", trigger=pb.TRIGGER_PREFETCH)
BUDGET_S = 8.0
SETTINGS = replace(ONE_REGION, silence_min_s=0.2, silence_max_s=0.4, check_timeout_s=60.0)


@dataclass
class Two:
    """Two replicas, and the view and the session of a user who prefers the first."""

    first: FakeReplica
    second: FakeReplica
    view: CompletionClient
    session: Session
    clock: Clock
    losses: Losses


@asynccontextmanager
async def two(
    first: FakeReplica | None = None, settings: RegionSettings = ONE_REGION, second_address: str = ""
) -> AsyncIterator[Two]:
    first, second, clock, losses = first or FakeReplica(), FakeReplica(), Clock(), Losses()
    async with (
        fake_replicas(first, second),
        view_of(first.endpoint, second_address or second.address, settings=settings, clock=clock) as view,
        view.session(listener=losses) as session,
    ):
        await eventually(lambda: all(each.why or each.round_trip_ms is not None for each in view.regions.states()))
        yield Two(first, second, view, session, clock, losses)


async def test_feedback_on_older_answers_goes_to_the_server_that_answered() -> None:
    async with two() as found:
        first, second, session = found.first, found.second, found.session

        def report(sequence: int) -> None:
            session.report_nowait(pb.ReportFeedbackRequest(sequence=sequence, kind=pb.FEEDBACK_KIND_ACCEPTED))

        for _ in range(3):
            await session.complete(REQUEST)
        report(3)
        report(1)
        await eventually(lambda: first.sequences("feedback") == [3, 1])
        pass_over(found.view, first.endpoint)
        await session.complete(REQUEST)
        report(2)  # the first server's, to which no stream is open
        report(4)
        await eventually(lambda: second.sequences("feedback") == [4])
        await eventually(lambda: first.sequences("report") == [2])
        found.clock.now_s = 60.0
        await session.complete(REQUEST)
        assert first.sequences("complete") == [1, 2, 3, 5]
        report(2)
        await eventually(lambda: first.sequences("feedback") == [3, 1, 2])
    assert (second.sequences("feedback"), second.sequences("report")) == ([4], [])


async def test_a_move_supersedes_the_older_typed_requests_and_no_prefetch() -> None:
    async with two() as found:
        first, session = found.first, found.session
        first.may_answer.clear()
        older, prefetch = session.submit_nowait(REQUEST), session.submit_nowait(PREFETCH)
        await eventually(lambda: len(first.sequences("complete")) == 2)
        pass_over(found.view, first.endpoint)
        assert (await session.complete(REQUEST)).text == "text"
        assert older.is_done
        assert (await older.result()).finish_reason == "superseded"
        await eventually(lambda: first.sequences("cancel") == [older.sequence])
        assert not prefetch.is_done
        first.may_answer.set()
        assert (await prefetch.result()).text == "text"


async def test_a_request_ends_once_if_its_listener_sends_the_next_one_elsewhere() -> None:
    async with two() as found:
        stream, listener = found.view.stream(), Mock(on_text=Mock())
        stream.start_nowait()

        def send_next(_last: object) -> None:
            pass_over(found.view, found.first.endpoint)
            newer = pb.CompleteRequest(session_id="s", sequence=2, prefix="x = 1")
            stream.send_nowait(newer, PendingCompletion(stream, 2, lambda _: None))

        listener.on_end.side_effect = listener.on_error.side_effect = send_next
        stream.send_nowait(pb.CompleteRequest(session_id="s", sequence=1, prefix="x = "), listener)
        await eventually(lambda: found.second.sequences("complete") == [2])
        await eventually(lambda: not stream._requests)
        assert listener.on_end.call_count + listener.on_error.call_count == 1
        await asyncio.gather(*stream.close_nowait(), return_exceptions=True)


async def test_the_trace_of_a_request_is_in_the_metadata() -> None:
    replica, traceparent = FakeReplica(), make_traceparent()
    async with fake_replicas(replica), CompletionClient(replica.endpoint) as client:
        await client.complete(pb.CompleteRequest(prefix="x = ", traceparent=traceparent, tracestate="vendor=1"))
        await client.complete(REQUEST)
    traced, other = replica.metadata
    assert (traced["traceparent"], traced["tracestate"]) == (traceparent, "vendor=1")
    assert not {"traceparent", "tracestate"} & set(other)


async def test_an_endpoint_whose_files_can_not_be_read_is_passed_over(tmp_path: Path) -> None:
    replica, clock = FakeReplica(), Clock()
    bad = Endpoint("127.0.0.1:1", ca=tmp_path / "away.pem")
    async with fake_replicas(replica), view_of(bad, replica.endpoint, clock=clock) as view:
        assert (await view.complete(REQUEST)).address == replica.address
        async with view.session() as session:
            for _ in range(2):
                assert (await session.complete(REQUEST)).text == "text"
                clock.now_s += 60.0  # it is tried again
    async with view_of(bad) as view:
        with pytest.raises(ConnectionLostError, match=r"away\.pem"):
            await view.complete(REQUEST)
        stream = view.stream()
        with pytest.raises(ConnectionLostError, match=r"away\.pem"):
            stream.send_nowait(REQUEST, PendingCompletion(stream, 1, lambda _: None))


async def test_a_refusal_is_that_of_its_server() -> None:
    draining, dead = FakeReplica(), Endpoint("127.0.0.1:1")
    draining.end = pb.End(finish_reason=pb.FINISH_REASON_SHED, shed_reason=pb.SHED_REASON_DRAINING)
    async with fake_replicas(draining):
        async with view_of(draining.endpoint, dead) as view:
            completion = await view.complete(REQUEST)
        assert (completion.finish_reason, completion.address) == ("shed", draining.address)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent_endpoint = Endpoint(f"127.0.0.1:{silent.getsockname()[1]}")
            async with view_of(draining.endpoint, silent_endpoint, dead) as view:
                with pytest.raises(DeadlineExceededError, match=f"{draining.address}: it drains"):
                    await view.complete(REQUEST, timeout_s=0.3)


async def test_a_request_that_a_server_fails_on_is_not_repeated_after_a_new_connection() -> None:
    failing, other = FakeReplica(failure=grpc.StatusCode.INTERNAL), FakeReplica()
    failing.may_answer.clear()
    async with fake_replicas(failing, other), view_of(failing.endpoint, other.endpoint) as view:
        asking = asyncio.create_task(view.complete(REQUEST))
        await eventually(lambda: len(failing.metadata) == 1)
        view.regions.connections.drop(view._replicas.connection(failing.endpoint))  # as new certificates do
        failing.may_answer.set()
        with pytest.raises(ServiceError, match="why"):
            await asking
        assert view.endpoint == failing.endpoint
    assert other.metadata == []


@asynccontextmanager
async def stalling(second_address: str = "") -> AsyncIterator[Two]:
    """Yield two replicas, of which the first stalls after the first text of its first and third answer."""
    first = FakeReplica(pb.End(finish_reason=STOP, text=" beta"), first_texts={1: "alpha", 3: "alpha"})
    async with two(first, SETTINGS, second_address) as found:
        first.may_answer.clear()
        yield found


async def test_a_session_goes_on_elsewhere_and_keeps_the_answer_that_has_begun() -> None:
    async with stalling() as found:
        first, session = found.first, found.session
        begun = session.submit_nowait(REQUEST, timeout_s=BUDGET_S)
        assert await anext(aiter(begun)) == "alpha"
        prefetch = session.submit_nowait(PREFETCH, timeout_s=BUDGET_S)
        await eventually(lambda: first.sequences("complete") == [1, 2])
        first.stall()
        assert (await prefetch.result()).text == "text"
        assert not begun.is_done
        assert session.is_connected
        first.resume()
        completion = await begun.result()
        assert (completion.finish_reason, completion.text) == ("stop", "alpha beta")
        assert (await session.complete(REQUEST, timeout_s=BUDGET_S)).text == "text"
        await eventually(lambda: first.seen == [("complete", 1), ("complete", 2), ("cancel", 2)])
        assert found.second.seen == [("complete", 2), ("complete", 3)]
    assert found.losses.errors == []


async def test_a_stall_without_another_server_fails_no_request() -> None:
    async with stalling("127.0.0.1:1") as found:
        first, session = found.first, found.session
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
    async with stalling() as found:
        session = found.session
        begun = session.submit_nowait(REQUEST)
        await anext(aiter(begun))
        found.first.stall()
        with pytest.raises(ConnectionLostError, match=f"{found.first.address} has sent nothing for"):
            await begun.result()
        assert len(found.losses.errors) == 1
        await eventually(lambda: session.is_connected)
        for timeout_s in (None, BUDGET_S):
            assert (await session.complete(REQUEST, timeout_s=timeout_s)).text == "text"
        assert (found.first.sequences("complete"), found.second.sequences("complete")) == ([1], [2, 3])


async def test_a_call_keeps_the_answer_that_has_begun_and_fails_if_it_never_goes_on() -> None:
    async with stalling() as found:
        first, view = found.first, found.view
        for timeout_s in (BUDGET_S, None):
            texts: list[str] = []
            asking = asyncio.create_task(view.complete(REQUEST, timeout_s=timeout_s, on_text=texts.append))
            await eventually(lambda texts=texts: texts == ["alpha"])
            first.stall()
            await eventually(lambda: view.endpoint == found.second.endpoint)
            if timeout_s is None:
                with pytest.raises(ConnectionLostError, match=f"{first.address} has sent nothing for"):
                    await asking
                break
            assert (await view.complete(REQUEST, timeout_s=BUDGET_S)).address == found.second.address
            assert not asking.done()
            first.resume()
            completion = await asking
            assert (completion.text, completion.address, completion.num_sent) == ("alpha beta", first.address, 1)
            first.may_answer.clear()
            found.clock.now_s += 60.0
        assert (len(first.metadata), len(found.second.metadata)) == (2, 1)


async def test_a_call_whose_only_server_closes_is_made_again_once_at_the_next_one_behind_the_address() -> None:
    replicas = (FakeReplica(), FakeReplica())
    async with AsyncExitStack() as stack:
        port, servers = 0, []
        for each in replicas:
            each.stall()
            server = grpc.aio.server(options=(("grpc.so_reuseport", 1),))
            add_CompletionServiceServicer_to_server(each, server)
            port = server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            stack.push_async_callback(server.stop, 0)
            stack.callback(each.resume)
            servers.append(server)
        client = await stack.enter_async_context(CompletionClient(f"127.0.0.1:{port}", user="ada"))
        asking = asyncio.create_task(client.complete(REQUEST))
        await eventually(lambda: any(each.metadata for each in replicas))
        asked = next(number for number, each in enumerate(replicas) if each.metadata)
        replicas[1 - asked].resume()
        await servers[asked].stop(0)
        completion = await asking
        assert (completion.text, completion.num_sent) == ("text", 2)
        assert [len(each.metadata) for each in replicas] == [1, 1]


@pytest.mark.parametrize("status", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE])
async def test_a_call_that_the_only_server_turns_away_is_not_made_again(status: grpc.StatusCode) -> None:
    """gRPC ends calls as CANCELLED if too many wait, and a proxy says UNAVAILABLE: the connection is as it was."""
    replica = FakeReplica(failure=status)
    async with fake_replicas(replica), CompletionClient(replica.endpoint, user="ada") as client:
        with pytest.raises(UnavailableError):
            await client.complete(REQUEST)
        assert len(replica.metadata) == 1
        async with fake_replicas(other := FakeReplica()), view_of(replica.endpoint, other.endpoint) as view:
            assert (await view.complete(REQUEST)).address == other.address, "but elsewhere, if there is another"
        replica.failure = None
        assert (await client.complete(REQUEST)).text == "text"
