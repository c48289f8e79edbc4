"""The shipped regions have the servers that `completion-server plan` calculates for the shipped inputs."""

import json
import re
import tomllib
from functools import cache
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from completion_server.config import Config
from loadtest.planning.command import plan
from tests.deploy.manifests.targets import REGIONS, rendered, server_config
from tests.support.kustomize import DEPLOY

INPUTS = DEPLOY / "plan" / "inputs.toml"


@cache
def planned(*options: str) -> Any:
    result = CliRunner().invoke(plan, ["--inputs", str(INPUTS), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def needed_servers(region: str) -> int:
    assert {each["name"] for each in planned()["regions"]} == set(REGIONS)
    (found,) = (each["needed_gpus"] for each in planned()["regions"] if each["name"] == region)
    return int(found // planned()["inputs"]["gpus_per_server"])


def values_of(region: str) -> Any:
    return yaml.safe_load((DEPLOY / "regions" / region / "region.yaml").read_text(encoding="utf-8"))["spec"]


def config() -> Config:
    return server_config(list(rendered("regions/us-east")))


def test_the_inputs_survive_the_loss_of_a_region() -> None:
    inputs = tomllib.loads(INPUTS.read_text(encoding="utf-8"))
    assert inputs["survive"] == planned()["inputs"]["survive"] == 1
    assert all(each["busy_if_lost"] <= 1 for each in planned()["regions"])


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_has_the_servers_that_the_plan_needs(region: str) -> None:
    assert values_of(region)["replicas"] == needed_servers(region)


@pytest.mark.parametrize("region", REGIONS)
def test_a_regions_gpu_is_the_planned_one(region: str) -> None:
    found = re.search(r"-(\d+)GB-", values_of(region)["gpu"])
    assert found is not None
    assert int(found[1]) == planned()["inputs"]["gpu_memory_gb"]


def test_the_base_and_the_servers_file_have_the_planned_numbers() -> None:
    servers, gpu = needed_servers("us-east"), planned()["inputs"]
    base = yaml.safe_load((DEPLOY / "base" / "server" / "deployment.yaml").read_text(encoding="utf-8"))
    assert base["spec"]["replicas"] == config().admission.assumed_replicas == servers
    assert config().engine.num_speculative_tokens == gpu["draft_tokens"]
    assert config().scheduling.max_slots == gpu["slots"]
    assert config().engine.tensor_parallel_size == gpu["gpus_per_server"]


def test_the_sessions_of_two_lost_regions_fit() -> None:
    most = config().admission.max_sessions
    assert most is not None
    assert min(map(needed_servers, REGIONS)) * most >= planned()["demand"]["sessions"]


def test_the_servers_file_states_the_sessions_of_a_server() -> None:
    text = (DEPLOY / "base" / "server" / "server.toml").read_text(encoding="utf-8")
    sessions, servers = planned()["demand"]["sessions"], sum(map(needed_servers, REGIONS))
    one_region = sessions / needed_servers("us-east")
    assert f"# {sessions:,} sessions on {servers} GPUs are {sessions / servers:.0f} for each server." in text
    assert f"a server has {one_region:,.0f}." in text


@pytest.mark.parametrize("options", [(), ("--gpus-per-region", "4"), ("--kv-dtype", "fp8")])
def test_the_document_states_the_plan(options: tuple[str, ...]) -> None:
    text = (DEPLOY.parent / "docs" / "capacity.md").read_text(encoding="utf-8").replace("**", "")
    region = planned(*options)["regions"][0]
    shares = (region[name] for name in ("busy", "busy_if_lost", "hit_share", "hit_share_if_lost"))
    assert " | {} | {:.0%}, {:.0%} | {:.0%}, {:.0%} |".format(region["gpus"], *shares) in text
