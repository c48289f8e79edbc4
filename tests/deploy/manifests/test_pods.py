"""What pods run works with real programs: the server of the ConfigMap behind its probes, the load test's command."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.__main__ import main
from loadtest.bench.runner.server import SCRIPTED, ServerProcess
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario
from tests.deploy.manifests.targets import rendered
from tests.support.kustomize import Object, one
from tests.support.models import TARGET
from tests.support.redis_servers import wait_until

STAND_INS = (*SCRIPTED, f"engine.model={TARGET}", "redis.secret_file=")
"""For what a pod has and a test has not: the models, an engine and a secret."""


def pod() -> Object:
    found: Object = one(rendered("regions/us-east"), "Deployment", "completion-server")["spec"]["template"]["spec"]
    return found


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


@pytest.mark.full
def test_a_server_answers_its_probes_refuses_strangers_and_ends_in_time(server: ServerProcess) -> None:
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


def test_every_pod_of_the_load_test_has_a_share_by_a_command_that_is_understood() -> None:
    (job,) = (each for each in rendered("loadtest") if each["kind"] == "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"], "they start at the same time"
    assert spec["backoffLimit"] == 0
    labels = spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert labels["job-name"] == job["metadata"]["name"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "loadtest"]
    assert {each["name"] for each in container["env"]} == {"JOB_COMPLETION_INDEX"}
    name, *arguments = container["command"][3:]
    values = {"$(JOB_COMPLETION_INDEX)": "3", "${START_AT}": "1790000000"}
    for variable, value in values.items():
        arguments = [each.replace(variable, value) for each in arguments]
    with main.commands[name].make_context(name, arguments) as context:
        found = context.params
    assert (found["worker_index"], found["num_workers"], found["start_at"]) == (3, spec["completions"], 1790000000.0)
    assert Scenario.load(found["scenario"]).sessions >= found["num_workers"]
    (target,) = found["targets"]
    assert parse_target(target).kind == "grpc"
    assert found["as_json"]
