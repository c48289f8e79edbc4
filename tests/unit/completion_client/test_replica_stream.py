"""The requests and the feedback of a session that moves between servers."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from replica_fakes import Clock, FakeReplica, fake_replicas, pass_over, view_of

from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    ServiceError,
    make_traceparent,
)
from completion_client.channel_pool import open_channel
from completion_client.regions.connections import Connection
from completion_client.replicas.answered import KEPT_S, AnsweredRequests
from completion_client.replicas.leg import _FixedChannel
from completion_client.replicas.stream import ReplicaStream
from completion_client.session import PendingCompletion
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
        clock.now_s = 60.0
        await session.complete(REQUEST)
        assert first.sequences("complete") == [1, 2, 3, 5]
        session.report_nowait(report(2, has_survived=True))
        await eventually(lambda: first.sequences("feedback") == [3, 1, 2])
    assert second.sequences("feedback") == [4]


async def test_feedback_on_a_request_without_text_is_not_sent() -> None:
    replica, other = FakeReplica(), FakeReplica()
    async with (
        fake_replicas(replica, other),
        view_of(replica.endpoint, other.endpoint) as view,
        view.session() as session,
    ):
        await session.complete(REQUEST)
        replica.end = pb.End(finish_reason=pb.FINISH_REASON_SUPERSEDED)
        await session.complete(REQUEST)
        for sequence in (2, 1):
            session.report_nowait(report(sequence))
        await eventually(lambda: bool(replica.sequences("feedback")))
        assert replica.sequences("feedback") == [1]


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
        await eventually(lambda: not stream.num_open)
        assert len(listener.events) == 1
        await asyncio.gather(*stream.close_nowait(), return_exceptions=True)


async def test_the_trace_of_a_request_is_in_the_metadata_with_one_server_and_with_several() -> None:
    replica, other, traceparent = FakeReplica(), FakeReplica(), make_traceparent()
    request = pb.CompleteRequest(prefix="x = ", traceparent=traceparent, tracestate="vendor=1")
    async with fake_replicas(replica, other):
        async with view_of(replica.endpoint, other.endpoint) as view:
            await view.complete(request)
        async with CompletionClient(replica.endpoint) as client:
            await client.complete(request)
    assert [each["traceparent"] for each in replica.metadata] == [traceparent] * 2
    assert [each["tracestate"] for each in replica.metadata] == ["vendor=1"] * 2


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
        view.regions._connections.drop(view._replicas.connection(failing.endpoint))  # as new certificates do
        failing.may_answer.set()
        with pytest.raises(ServiceError, match="why"):
            await asking
        assert view.endpoint == failing.endpoint
    assert other.metadata == []


async def test_a_wait_for_a_silent_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(f"127.0.0.1:{silent.getsockname()[1]}")
        channels = _FixedChannel(Connection(endpoint, open_channel(endpoint)), 0.05)
        async with asyncio.timeout(10.0):
            with pytest.raises(ConnectionLostError, match="no connection"):
                await channels.ready()


def test_answers_are_forgotten_by_number_and_by_age() -> None:
    here, there = Endpoint("here:1"), Endpoint("there:1")
    answered = AnsweredRequests(max_answers=2)
    for sequence, endpoint in ((1, here), (3, there), (2, here)):  # in the order of their ends
        answered.add(sequence, endpoint, now_s=float(sequence))
    assert [answered.endpoint(sequence, 3.0) for sequence in (1, 2, 3, 4)] == [None, here, there, None]
    assert answered.endpoint(3, 3.0 + KEPT_S) is None
    answered.add(5, here, now_s=3.0 + KEPT_S)
    assert [answered.endpoint(sequence, 3.0) for sequence in (2, 3, 5)] == [None, None, here]
