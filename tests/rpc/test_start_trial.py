"""The trial of K at the start of a server."""

import asyncio
import logging

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from completion_server.composition.app import App, Ready
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation import trial
from tests.support.server import make_config

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

    async def prime(typist: trial.Typist, ks: tuple[int, ...]) -> None:
        async with grpc.aio.insecure_channel(addresses[0]) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            statuses.append(answer.status)
        assert not ready.done()
        await real_prime(typist, ks)

    monkeypatch.setattr(trial.Typist, "prime", prime)
    config = make_config("speculation.mode=auto")
    times = ServiceTimes(prefill_base_s=1e-3, decode_base_s=1e-3)
    app = App(
        config,
        lambda: ScriptedEngine(times=times, num_speculative_tokens=2, acceptance_rate=0.9, max_num_seqs=4),
        registry=CollectorRegistry(),
    )
    monkeypatch.setattr(
        "completion_server.composition.app.warn_of_exposure", lambda _config, address: addresses.append(address)
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
