"""Operators read and change the number of speculative tokens."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import BadRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from completion.v1 import admin_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_server.app.app import App, Ready
from completion_server.config import Config
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.speculation import trial
from tests.support.server import ask, make_config, request, run_server

MAX_K = 4
FIXED, SCHEDULE, AUTO = pb.SPECULATION_MODE_FIXED, pb.SPECULATION_MODE_SCHEDULE, pb.SPECULATION_MODE_AUTO


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(times=ServiceTimes(decode_base_s=1e-3), num_speculative_tokens=MAX_K, max_num_seqs=16)


def rows(*numbers: tuple[int, int, int]) -> list[pb.SpeculationRow]:
    return [
        pb.SpeculationRow(first_batch_size=first, last_batch_size=last, num_speculative_tokens=k)
        for first, last, k in numbers
    ]


@asynccontextmanager
async def serving(config: Config, make_engine: Callable[[], Engine]) -> AsyncIterator[AdminServiceStub]:
    """Run a server and yield its admin stub after a first request."""
    async with run_server(config, make_engine) as server:
        assert (await ask(server.stub, request(max_tokens=32))).end is not None
        async with grpc.aio.insecure_channel(server.ready.admin_address) as channel:
            yield AdminServiceStub(channel)


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[AdminServiceStub]:
    async with serving(make_config(), make_engine) as stub:
        yield stub


async def get(admin: AdminServiceStub) -> pb.GetSpeculationResponse:
    return await admin.GetSpeculation(pb.GetSpeculationRequest(), timeout=5)


async def test_operators_read_the_active_schedule_and_its_figures(admin: AdminServiceStub) -> None:
    answer = await get(admin)
    assert list(answer.schedule) == list(answer.table) == rows((1, 16, MAX_K))
    assert (answer.max_num_speculative_tokens, answer.mode, answer.by) == (MAX_K, FIXED, "configuration")
    assert answer.since_unix_ms > 1_700_000_000_000
    assert answer.fixed_because == ""
    figures = answer.figures
    assert figures.generated_tokens > 0
    assert figures.drafted_tokens == figures.accepted_tokens + figures.wasted_tokens > 0
    assert figures.acceptance == pytest.approx(figures.accepted_tokens / figures.drafted_tokens)
    assert len(figures.acceptance_by_position) == MAX_K
    assert 1 <= figures.mean_accepted_length <= 1 + MAX_K
    assert figures.tokens_per_s > 0


async def test_operators_change_the_schedule(admin: AdminServiceStub) -> None:
    table = rows((1, 4, 4), (5, 16, 0))
    for asked, schedule in (
        (pb.SetSpeculationRequest(mode=FIXED, num_speculative_tokens=0, by="ada@host"), rows((1, 16, 0))),
        (pb.SetSpeculationRequest(mode=SCHEDULE, schedule=table), table),
        (pb.SetSpeculationRequest(mode=AUTO), None),
    ):
        answer, now = await admin.SetSpeculation(asked, timeout=5), await get(admin)
        assert (now.by, now.since_unix_ms, now.mode) == (asked.by, answer.since_unix_ms, asked.mode)
        assert schedule is None or list(answer.schedule) == list(now.schedule) == schedule
    assert list(now.table) == table


REFUSED = (
    (pb.SetSpeculationRequest(), "mode", "must be FIXED, SCHEDULE or AUTO, got 0"),
    (pb.SetSpeculationRequest(mode=9), "mode", "must be FIXED"),
    (pb.SetSpeculationRequest(mode=FIXED), "num_speculative_tokens", "must be set for mode FIXED"),
    (pb.SetSpeculationRequest(mode=FIXED, num_speculative_tokens=5), "num_speculative_tokens", "over the 4"),
    (
        pb.SetSpeculationRequest(mode=FIXED, num_speculative_tokens=1, schedule=rows((1, 1, 1))),
        "schedule",
        "must be empty",
    ),
    (pb.SetSpeculationRequest(mode=SCHEDULE), "schedule", "at least one row"),
    (pb.SetSpeculationRequest(mode=SCHEDULE, num_speculative_tokens=1), "num_speculative_tokens", "FIXED alone"),
    (pb.SetSpeculationRequest(mode=SCHEDULE, schedule=rows((1, 4, 1), (6, 9, 1))), "schedule[1]", "at batch size 5"),
    (pb.SetSpeculationRequest(mode=SCHEDULE, schedule=rows((1, 4, 1), (4, 9, 1))), "schedule[1]", "at batch size 5"),
    (pb.SetSpeculationRequest(mode=SCHEDULE, schedule=rows((2, 4, 1))), "schedule[0]", "begin at batch size 1"),
    (pb.SetSpeculationRequest(mode=AUTO, schedule=rows((1, 4, 5))), "schedule[0]", "over the 4"),
    (pb.SetSpeculationRequest(mode=AUTO, by="a\nb"), "by", "256 printable"),
    (pb.SetSpeculationRequest(mode=AUTO, by="a" * 257), "by", "got 257"),
)


async def test_an_invalid_field_is_refused_by_name(admin: AdminServiceStub) -> None:
    before = await get(admin)
    for bad, field, message in REFUSED:
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await admin.SetSpeculation(bad, timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        status = rpc_status.from_call(caught.value)
        assert status is not None
        details = BadRequest()
        assert status.details[0].Unpack(details)
        assert [violation.field for violation in details.field_violations] == [field]
    after = await get(admin)
    assert (after.schedule, after.since_unix_ms, after.mode) == (before.schedule, before.since_unix_ms, before.mode)


async def test_an_engine_without_a_draft_model_refuses_changes() -> None:
    async with serving(make_config(), ScriptedEngine) as admin:
        assert "without a draft model" in (await get(admin)).fixed_because
        with pytest.raises(grpc.aio.AioRpcError, match="without a draft model") as caught:
            await admin.SetSpeculation(pb.SetSpeculationRequest(mode=AUTO), timeout=5)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_the_configured_schedule_is_active_from_the_start() -> None:
    config = make_config(
        "engine.draft_model=some/draft", 'speculation.mode="schedule"', "speculation.schedule=[[1, 2, 3], [3, 16, 0]]"
    )
    async with serving(config, make_engine) as admin:
        answer = await get(admin)
    assert (answer.mode, list(answer.schedule)) == (SCHEDULE, rows((1, 2, 3), (3, 16, 0)))


WAIT_S = 60.0


@pytest.mark.serial
async def test_health_is_not_serving_until_the_trial_has_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trial, "LIMIT_S", 1.0)
    addresses: list[str] = []
    statuses: list[int] = []
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    real_prime = trial.Typist.prime

    async def prime(typist: trial.Typist, ks: tuple[int, ...], end_at: float) -> bool:
        async with grpc.aio.insecure_channel(addresses[0]) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            statuses.append(answer.status)
        assert not ready.done()
        return await real_prime(typist, ks, end_at)

    monkeypatch.setattr(trial.Typist, "prime", prime)
    config = make_config("speculation.mode=auto")
    times = ServiceTimes(prefill_base_s=1e-3, decode_base_s=1e-3)
    app = App(
        config,
        lambda: ScriptedEngine(times=times, num_speculative_tokens=2, acceptance_rate=0.9, max_num_seqs=4),
        registry=CollectorRegistry(),
    )
    monkeypatch.setattr(
        "completion_server.app.app.warn_of_exposure", lambda _config, address: addresses.append(address)
    )
    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(app.run(ready.set_result))
        async with asyncio.timeout(WAIT_S):  # for the ready line
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        assert statuses == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert ready.result().speculation.startswith("auto, ")
        assert "1 request: " in ready.result().speculation
        assert "measuring whether drafts pay" in caplog.text
        app.drain(0.0)
        await asyncio.wait_for(task, WAIT_S)
