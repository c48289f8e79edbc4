"""A real server with the ConfigMap's file answers the probes of its pod, and ends within its grace."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.bench.replicas.servers import SCRIPTED
from loadtest.bench.runner.server import ServerProcess
from tests.deploy.manifests.targets import rendered
from tests.support.kustomize import one
from tests.support.models import TARGET
from tests.support.redis_servers import wait_until

NO_REDIS = tuple(f"redis.{key}=" for key in ("password_file", "sentinel_password_file", "secret_file"))
STAND_INS = (*SCRIPTED, f"engine.model={TARGET}", "redis.addresses=[]", *NO_REDIS)
"""For what a pod has and a test has not: the models, an engine and a Redis."""


def pod() -> dict[str, Any]:
    found: dict[str, Any] = one(rendered("regions/us-east"), "Deployment", "completion-server")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    path = tmp_path / "server.toml"
    path.write_text(one(rendered("regions/us-east"), "ConfigMap", "completion-server")["data"]["server.toml"])
    process = ServerProcess(path, STAND_INS, has_metrics=True)
    try:
        yield process
    finally:
        process.stop()


def check(channel: grpc.Channel, probe: str) -> str:
    """Ask as kubelet does for a probe; return the status."""
    asked = pod()["containers"][0][probe]["grpc"]["service"]
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=asked), timeout=5)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_it_answers_its_probes_refuses_strangers_and_ends_in_time(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.ready["address"]) as channel:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert check(channel, probe) == "SERVING"
        with pytest.raises(grpc.RpcError) as refused:
            list(CompletionServiceStub(channel).Complete(pb.CompleteRequest(session_id="s", sequence=1), timeout=10))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        request = pb.CompleteRequest(session_id="s", sequence=1, prefix="def add(a, b):\n    return ", max_tokens=4)
        metadata = (("x-user-id", "alice"),)
        answers = list(CompletionServiceStub(channel).Complete(request, metadata=metadata, timeout=10))
        assert answers[-1].HasField("end")
        with_session = CompletionServiceStub(channel).Session(idle(), metadata=metadata)
        with_session.initial_metadata()
        started = time.monotonic()
        server.process.terminate()
        wait_until(lambda: has_ended(server.pid), pod()["terminationGracePeriodSeconds"])
        assert time.monotonic() - started < pod()["terminationGracePeriodSeconds"] - 5, "the rest is preStop's"
        assert with_session.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def idle() -> Iterator[pb.SessionRequest]:
    """Send nothing, and keep the stream open until the server ends it."""
    time.sleep(3)
    yield from ()


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
