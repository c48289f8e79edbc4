"""The requests of a session that moves between servers, of which one stalls or fails."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import add_CompletionServiceServicer_to_server
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    ReplicaStream,
    ServiceError,
    UnavailableError,
    make_traceparent,
)
from completion_client.session import PendingCompletion
from tests.support.replica_fakes import ONE_REGION, STOP, Clock, FakeReplica, Losses, fake_replicas, pass_over, view_of
from tests.support.server import eventually

REQUEST = pb.CompleteRequest(prefix="x = ")


def report(sequence: int, *, has_survived: bool = False) -> pb.ReportFeedbackRequest:
    kind = pb.FEEDBACK_KIND_SURVIVED if has_survived else pb.FEEDBACK_KIND_ACCEPTED
    return pb.ReportFeedbackRequest(sequence=sequence, kind=kind)


async def test_feedback_on_older_answers_goes_to_the_server_that_answered() -> None:
    first, second, clock = FakeReplica(), FakeReplica(), Clock()
    async with (
        fake_replicas(first, second),
        view_of(first.endpoint, second.endpoint, clock=clock) as view,
        view.session() as session,
    ):
        for _ in range(3):
            await session.complete(REQUEST)
        session.report_nowait(report(3))
        session.report_nowait(report(1, has_survived=True))
        await eventually(lambda: first.sequences("feedback") == [3, 1])
        pass_over(view, first.endpoint)
        await session.complete(REQUEST)
        session.report_nowait(report(2))  # the first server's, to which no stream is open
        session.report_nowait(report(4))
        await eventually(lambda: second.sequences("feedback") == [4])
        await eventually(lambda: first.sequences("report") == [2])
        clock.now_s = 60.0
        await session.complete(REQUEST)
        assert first.sequences("complete") == [1, 2, 3, 5]
        session.report_nowait(report(2, has_survived=True))
        await eventually(lambda: first.sequences("feedback") == [3, 1, 2])
    assert second.sequences("feedback") == [4]
    assert second.sequences("report") == []


async def test_a_move_supersedes_the_older_typed_requests_and_no_prefetch() -> None:
    first, second = FakeReplica(), FakeReplica()
    async with (
        fake_replicas(first, second),
        view_of(first.endpoint, second.endpoint) as view,
        view.session() as session,
    ):
        first.may_answer.clear()
        older = session.submit_nowait(REQUEST)
        prefetch = session.submit_nowait(pb.CompleteRequest(prefix="x = ", trigger=pb.TRIGGER_PREFETCH))
        await eventually(lambda: len(first.sequences("complete")) == 2)
        pass_over(view, first.endpoint)
        assert (await session.complete(REQUEST)).text == "text"
        assert older.is_done
        assert (await older.result()).finish_reason == "superseded"
        await eventually(lambda: first.sequences("cancel") == [older.sequence])
        assert not prefetch.is_done
        first.may_answer.set()
        assert (await prefetch.result()).text == "text"


class SendsTheNext:
    """Sends the next request of its stream when its own has ended."""

    def __init__(self, stream: ReplicaStream, on_next: Callable[[], None]) -> None:
        self.stream = stream
        self.on_next = on_next
        self.events: list[str] = []

    def on_text(self, text: str) -> None:
        self.events.append(text)

    def on_end(self, end: pb.End) -> None:
        self._ended(f"end {end.finish_reason}")

    def on_error(self, error: ServiceError) -> None:
        self._ended("error")

    def _ended(self, event: str) -> None:
        self.events.append(event)
        if len(self.events) == 1:
            self.on_next()


async def test_a_request_ends_once_if_its_listener_sends_the_next_one_elsewhere() -> None:
    first, second = FakeReplica(), FakeReplica()
    async with fake_replicas(first, second), view_of(first.endpoint, second.endpoint) as view:
        stream = view.stream()
        stream.start_nowait()
        answered = asyncio.Event()

        def send_next() -> None:
            pass_over(view, first.endpoint)
            newer = pb.CompleteRequest(session_id="s", sequence=2, prefix="x = 1")
            stream.send_nowait(newer, PendingCompletion(stream, 2, lambda _: answered.set()))

        listener = SendsTheNext(stream, send_next)
        stream.send_nowait(pb.CompleteRequest(session_id="s", sequence=1, prefix="x = "), listener)
        await eventually(lambda: second.sequences("complete") == [2])
        await eventually(lambda: not stream._requests)
        assert len(listener.events) == 1
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


PREFETCH = pb.CompleteRequest(prefix="x = ", trigger=pb.TRIGGER_PREFETCH)
BUDGET_S = 8.0
SETTINGS = replace(ONE_REGION, silence_min_s=0.2, silence_max_s=0.4, check_timeout_s=60.0)


@asynccontextmanager
async def stalling(other_address: str = "") -> AsyncIterator[tuple[FakeReplica, FakeReplica, CompletionClient]]:
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
        limited = session.submit_nowait(REQUEST, timeout_s=BUDGET_S)
        assert (await limited.result()).text == "text"
        assert (first.sequences("complete"), other.sequences("complete")) == ([1], [2, 3])


async def test_a_call_keeps_the_answer_that_has_begun_and_fails_if_it_never_goes_on() -> None:
    async with stalling() as (first, other, view):
        for goes_on in (True, False):
            first.first_texts = {1: "alpha", 3: "alpha"}
            texts: list[str] = []
            asking = asyncio.create_task(
                view.complete(REQUEST, timeout_s=BUDGET_S if goes_on else None, on_text=texts.append)
            )
            await eventually(lambda texts=texts: texts == ["alpha"])
            first.stall()
            await eventually(lambda: view.endpoint == other.endpoint)
            if goes_on:
                assert (await view.complete(REQUEST, timeout_s=BUDGET_S)).address == other.address
                assert not asking.done()
                first.resume()
                completion = await asking
                assert (completion.text, completion.num_sent) == ("alpha beta", 1)
                assert completion.address == first.address
                first.may_answer.clear()
                view.regions.now.now_s += 60.0  # type: ignore[attr-defined]
            else:
                with pytest.raises(ConnectionLostError, match=f"{first.address} has sent nothing for"):
                    await asking
        assert (len(first.metadata), len(other.metadata)) == (2, 1)


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
