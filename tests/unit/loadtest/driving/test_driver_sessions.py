"""The open-loop driver against real gRPC servers on loopback: `Session` streams."""

import math
import socket
from dataclasses import replace

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest import targets
from loadtest.driving.driver import drive
from loadtest.targets import ClientSettings, TargetError, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.traffic.typed import OPENING_SEQUENCE, Event
from tests.support.server import eventually, make_config, run_server
from tests.unit.loadtest.driving.fake_servers import Editors, outcomes, serving, session_target
from tests.unit.loadtest.typed import trace


async def test_session_requests_end_as_the_server_says() -> None:
    kinds = ("answer", "empty", "shed", "deadline", "error")
    editors = Editors({OPENING_SEQUENCE + 1 + place: kind for place, kind in enumerate(kinds)})
    made = trace(*((0.02 * place, 0.02 * place + 0.01) for place in range(len(kinds))))
    async with session_target(editors) as target:
        run = await drive(target, made)
    assert outcomes(run.results) == ["answered", "empty", "shed", "deadline", "error"]
    answered, empty, *_others, failed = run.results
    assert (answered.completion_tokens, empty.completion_tokens) == (4, 1)
    assert answered.first_text_at_s is not None
    assert answered.ended_at_s is not None
    assert answered.sent_at_s <= answered.first_text_at_s <= answered.ended_at_s
    assert empty.ttft_s is None
    assert failed.error == "a field is bad"
    assert run.generated_tokens == 10


async def test_session_editors_just_send_their_next_request() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.05), (0.1, 1.0), num_sessions=3))
    assert outcomes(run.results) == ["superseded", "answered"] * 3
    assert all(result.first_text_at_s is not None for result in run.results), "text before the supersede was heard"
    assert run.results[0].completion_tokens == 2
    assert len(set(editors.users)) == 3
    assert {request.mode for request in editors.requests} == {pb.MODE_MULTI_LINE}
    tokens = {(request.sequence > OPENING_SEQUENCE, request.max_tokens) for request in editors.requests}
    assert tokens == {(False, 1), (True, 24)}


async def test_session_editors_may_cancel_at_the_key() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold", OPENING_SEQUENCE + 4: "hold"})
    async with session_target(editors, cancels_at_key=True) as target:
        run = await drive(target, trace((0.0, 0.05), (0.1, 0.3), (0.4, 1.0), (0.5, 0.55), duration_s=0.6))
    assert outcomes(run.results) == ["hung_up", "answered", "answered", "hung_up"]
    assert editors.cancelled == [OPENING_SEQUENCE + 1, OPENING_SEQUENCE + 4], "an ended request is not cancelled"
    assert run.results[0].completion_tokens == 2


async def test_session_editors_keep_what_the_user_types_along() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "along"})
    async with session_target(editors, cancels_at_key=True) as target:
        run = await drive(target, trace((0.0, 0.05), (0.1, 1.0)))
    assert outcomes(run.results) == ["superseded", "answered"]
    assert editors.cancelled == []


async def test_session_stragglers_are_cancelled_and_unanswered() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.5), duration_s=0.05), drain_s=0.05)
        again = await drive(target, trace((0.0, 0.5), duration_s=0.05), drain_s=0.05, has_lead_in=False)
        await eventually(lambda: editors.num_left == 2)
    assert outcomes(run.results) == outcomes(again.results) == ["unanswered"]
    assert run.results[0].ttft_s is not None
    openings = [request for request in editors.requests if request.sequence == OPENING_SEQUENCE]
    assert len(openings) == 1, "without a lead-in nothing is opened"


async def test_a_broken_stream_fails_its_open_request_and_is_reopened() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold", OPENING_SEQUENCE + 2: "break"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 0.05), (0.02, 0.15), (0.4, 1.0), duration_s=0.5))
        assert len(target.reconnects_s) == 1
        assert 0 < target.reconnects_s[0] < 0.4
    assert outcomes(run.results) == ["superseded", "error", "answered"]
    assert "it broke" in run.results[1].error


async def test_a_stream_that_the_server_ends_in_good_order_is_no_failure() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "end", OPENING_SEQUENCE + 3: "end"})
    async with session_target(editors) as target:
        run = await drive(target, trace((0.0, 9.0), (0.2, 9.0), (0.4, 9.0), duration_s=0.5))
        assert target.reconnects_s == []
    assert outcomes(run.results) == ["answered"] * 3
    asked = [request.sequence - OPENING_SEQUENCE for request in editors.requests]
    assert asked == [0, 1, 1, 2, 3, 3], "an unanswered opening is sent again"
    assert len(editors.users) == 3


async def test_an_idle_editor_opens_a_stream_with_its_next_request() -> None:
    made = trace((0.0, 9.0), (1.0, 9.0), num_sessions=3, duration_s=1.1)
    config = make_config("admission.session_idle_s=0.2", "admission.first_request_s=0.2")
    async with run_server(config, _engine) as server:
        spec = TargetSpec("real", "grpc", (server.ready.address,))
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
            assert target.reconnects_s == []
    assert outcomes(run.results) == ["answered"] * 6


def _engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("pass", "\n"), ServiceTimes(decode_base_s=0.001))


async def test_a_dropped_connection_fails_its_open_request_and_is_reopened() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    made = trace((0.0, 9.0), (0.1005, 9.0), (0.5, 9.0), num_sessions=3, duration_s=0.55)
    made = replace(made, events=(Event(0.1, "reconnect", None, 0.1),))
    async with session_target(editors) as target:
        run = await drive(target, made)
        assert len(target.reconnects_s) == 3
    assert outcomes(run.results) == ["error", "error", "answered"] * 3
    assert [result.error for result in run.results[:2]] == ["the connection was dropped", "not connected"]
    assert len(editors.users) == 6


async def test_a_lost_region_is_served_by_the_next_host_and_comes_home() -> None:
    near, far = Editors(), Editors()
    made = trace((0.0, 9.0), (0.4, 9.0), (0.8, 9.0), duration_s=0.85)
    made = replace(made, events=(Event(0.1, "region_loss", 0, 0.5), Event(0.1, "region_loss", 1, 0.5)))
    async with serving(near) as near_port, serving(far) as far_port:
        hosts = (f"127.0.0.1:{near_port}", f"127.0.0.1:{far_port}")
        async with GrpcTarget(TargetSpec("fake", "grpc", hosts), ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
    assert outcomes(run.results) == ["answered"] * 3
    assert [request.sequence - OPENING_SEQUENCE for request in near.requests] == [1, 3]
    assert [request.sequence - OPENING_SEQUENCE for request in far.requests] == [2]
    assert math.isnan(run.generated_tokens), "the target does not report it"


async def test_no_connection_carries_more_streams_than_servers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "STREAMS_PER_CONNECTION", 4)
    made = trace((0.0, 9.0), num_sessions=18)
    made = replace(made, sessions=tuple(each for each in made.sessions if each.number % 2))  # a worker's share
    async with run_server(make_config("server.max_concurrent_streams=4"), _engine) as server:
        spec = TargetSpec("real", "grpc", (server.ready.address,), {"connections": "2"})
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, made, has_lead_in=False)
            assert target.num_connected == 9
    assert outcomes(run.results) == ["answered"] * 9


@pytest.mark.parametrize("connections", ["1", "2"])
async def test_sessions_may_share_connections(connections: str) -> None:
    editors = Editors()
    async with serving(editors) as port:
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",), {"connections": connections})
        async with GrpcTarget(spec, ClientSettings()) as target:
            run = await drive(target, trace((0.0, 9.0), num_sessions=5))
            assert target.num_connected == 5
    assert outcomes(run.results) == ["answered"] * 5
    assert len(set(editors.users)) == 5
    assert len(editors.peers) == int(connections)


async def test_a_deadline_ends_a_session_s_request() -> None:
    editors = Editors({OPENING_SEQUENCE + 1: "hold"})
    async with serving(editors) as port:
        spec = TargetSpec("fake", "grpc", (f"127.0.0.1:{port}",))
        async with GrpcTarget(spec, ClientSettings(deadline_s=0.1)) as target:
            run = await drive(target, trace((0.0, 9.0)), has_lead_in=False)
    assert outcomes(run.results) == ["deadline"]
    assert editors.cancelled == [OPENING_SEQUENCE + 1]
    assert 0 < editors.requests[-1].timeout_ms <= 100


async def test_a_server_without_grpc_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        async with GrpcTarget(TargetSpec("fake", "grpc", (host,)), ClientSettings()) as target:
            with pytest.raises(TargetError, match=f"fake: no connection to {host}"):
                await drive(target, trace((0.0, 9.0)))


async def test_streams_that_do_not_stay_open_are_reported_before_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 0.5)
    editors = Editors(refuses="who are you")
    async with session_target(editors) as target:
        with pytest.raises(TargetError, match="streams end as soon as they are opened: UNAUTHENTICATED: who are you"):
            await drive(target, trace((0.0, 9.0)))
    assert not editors.requests


async def test_an_opening_that_fails_ends_the_run() -> None:
    async with session_target(Editors({OPENING_SEQUENCE: "error"})) as target:
        with pytest.raises(TargetError, match="a field is bad"):
            await drive(target, trace((0.0, 0.05), num_sessions=3))
