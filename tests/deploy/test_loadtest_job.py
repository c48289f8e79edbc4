"""The manifest for many machines: it parses, and its command is one that the load tester understands."""

from pathlib import Path
from typing import Any

import yaml

from loadtest.__main__ import main
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

MANIFEST = Path(__file__).resolve().parents[2] / "deploy" / "components" / "loadtest" / "job.yaml"


def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def test_every_pod_has_a_share() -> None:
    spec = job()["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"], "they start at the same time"
    assert spec["backoffLimit"] == 0
    labels = spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    assert labels["job-name"] == job()["metadata"]["name"]


def test_its_command_is_understood() -> None:
    spec = job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "loadtest"]
    assert {each["name"] for each in container["env"]} == {"JOB_COMPLETION_INDEX"}
    values = {"$(JOB_COMPLETION_INDEX)": "3", "${START_AT}": "1790000000"}
    arguments = container["command"][3:]
    for name, value in values.items():
        arguments = [each.replace(name, value) for each in arguments]
    name, *rest = arguments
    with main.commands[name].make_context(name, rest) as context:
        found = context.params
    assert (found["worker_index"], found["num_workers"], found["start_at"]) == (3, spec["completions"], 1790000000.0)
    assert Scenario.load(found["scenario"]).sessions >= found["num_workers"]
    (target,) = found["targets"]
    assert parse_target(target).kind == "grpc"
    assert found["as_json"]
