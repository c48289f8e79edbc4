"""What pods run works with real programs: the server of the ConfigMap behind its probes, the load test's command."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import completion_pb2 as pb
from completion.v1 import completion_pb2_grpc as pb_grpc
from loadtest.__main__ import main
from loadtest.bench.runner.server import SCRIPTED
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario
from tests.deploy.manifests.targets import rendered
from tests.support.kustomize import one
from tests.support.models import TARGET
from tests.support.server import FREE_PORTS, ask
from tests.support.server_process import flags, serving

STAND_INS = (*FREE_PORTS, *SCRIPTED, f"engine.model={TARGET}", "redis.secret_file=")
"""For what a pod has and a test has not: the models, an engine and a secret."""


@pytest.mark.full
async def test_a_server_answers_its_probes_refuses_strangers_and_ends_in_time(tmp_path: Path) -> None:
    config, objects = tmp_path / "server.toml", rendered("regions/us-east")
    config.write_text(one(objects, "ConfigMap", "completion-server")["data"]["server.toml"])
    pod = one(objects, "Deployment", "completion-server")["spec"]["template"]["spec"]
    async with (
        serving(tmp_path, "--json", "--config", str(config), *flags(*STAND_INS)) as server,
        grpc.aio.insecure_channel(server.ready["address"]) as channel,
    ):
        health, stub = health_pb2_grpc.HealthStub(channel), pb_grpc.CompletionServiceStub(channel)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            check = health_pb2.HealthCheckRequest(service=pod["containers"][0][probe]["grpc"]["service"])
            assert (await health.Check(check, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
        request = pb.CompleteRequest(session_id="s", sequence=1, prefix="return ", max_tokens=4)
        assert (await ask(stub, request)).code is grpc.StatusCode.UNAUTHENTICATED
        assert (await ask(stub, request, metadata=(("x-user-id", "alice"),))).end is not None
        session = stub.Session(metadata=(("x-user-id", "alice"),))
        await session.initial_metadata()
        server.process.terminate()
        # The rest of the grace period is preStop's.
        assert await server.ended(pod["terminationGracePeriodSeconds"] - 5) == 0
        assert await session.code() is grpc.StatusCode.UNAVAILABLE


def test_every_pod_of_the_load_test_has_a_share_by_a_command_that_is_understood() -> None:
    (job,) = (each for each in rendered("loadtest") if each["kind"] == "Job")
    spec = job["spec"]
    assert (spec["completionMode"], spec["backoffLimit"]) == ("Indexed", 0)
    assert spec["completions"] == spec["parallelism"], "they start at the same time"
    labels = spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert labels["job-name"] == job["metadata"]["name"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "loadtest"]
    assert {each["name"] for each in container["env"]} == {"JOB_COMPLETION_INDEX"}
    typed = " ".join(container["command"][3:])
    name, *arguments = typed.replace("$(JOB_COMPLETION_INDEX)", "3").replace("${START_AT}", "1790000000").split()
    with main.commands[name].make_context(name, arguments) as context:
        found = context.params
    assert (found["worker_index"], found["num_workers"], found["start_at"]) == (3, spec["completions"], 1790000000.0)
    assert Scenario.load(found["scenario"]).sessions >= found["num_workers"]
    (target,) = found["targets"]
    assert parse_target(target).kind == "grpc"
    assert found["as_json"]
