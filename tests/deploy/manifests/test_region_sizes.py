"""The shipped regions have the servers that `completion-server plan` calculates for the shipped inputs."""

import json
import tomllib
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.planning.command import plan
from tests.deploy.manifests.targets import REGIONS, loaded, rendered, server_config
from tests.support.kustomize import DEPLOY

INPUTS = DEPLOY / "plan" / "inputs.toml"


@cache
def planned(*options: str) -> Any:
    result = CliRunner().invoke(plan, ["--inputs", str(INPUTS), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def needed_servers(region: str) -> int:
    (found,) = (each["needed_gpus"] for each in planned()["regions"] if each["name"] == region)
    return int(found // planned()["inputs"]["gpus_per_server"])


def test_the_inputs_survive_the_loss_of_a_region() -> None:
    inputs = tomllib.loads(INPUTS.read_text(encoding="utf-8"))
    assert inputs["survive"] == planned()["inputs"]["survive"] == 1
    assert {each["name"] for each in planned()["regions"]} == set(REGIONS)
    assert all(each["busy_if_lost"] <= 1 for each in planned()["regions"])


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_has_the_servers_and_the_gpu_of_the_plan(region: str) -> None:
    values = loaded(f"regions/{region}/region.yaml")["spec"]
    assert values["replicas"] == needed_servers(region)
    assert f"-{planned()['inputs']['gpu_memory_gb']:g}GB-" in values["gpu"]


def test_the_base_and_the_servers_file_have_the_planned_numbers() -> None:
    servers, gpu, sessions = needed_servers("us-east"), planned()["inputs"], planned()["demand"]["sessions"]
    config = server_config(list(rendered("regions/us-east")))
    assert loaded("base/server/deployment.yaml")["spec"]["replicas"] == config.admission.assumed_replicas == servers
    assert config.engine.num_speculative_tokens == gpu["draft_tokens"]
    assert config.scheduling.max_slots == gpu["slots"]
    assert config.engine.tensor_parallel_size == gpu["gpus_per_server"]
    # The sessions of two lost regions fit.
    assert min(map(needed_servers, REGIONS)) * (config.admission.max_sessions or 0) >= sessions
    text = (DEPLOY / "base" / "server" / "server.toml").read_text(encoding="utf-8")
    num = sum(map(needed_servers, REGIONS))
    assert f"# {sessions:,} sessions on {num} GPUs are {sessions / num:.0f} for each server." in text
    assert f"a server has {sessions / servers:,.0f}." in text


@pytest.mark.parametrize("options", [(), ("--gpus-per-region", "4"), ("--kv-dtype", "fp8")])
def test_the_document_states_the_plan(options: tuple[str, ...]) -> None:
    text = (DEPLOY.parent / "docs" / "capacity.md").read_text(encoding="utf-8").replace("**", "")
    region = planned(*options)["regions"][0]
    shares = (region[name] for name in ("busy", "busy_if_lost", "hit_share", "hit_share_if_lost"))
    assert " | {} | {:.0%}, {:.0%} | {:.0%}, {:.0%} |".format(region["gpus"], *shares) in text
