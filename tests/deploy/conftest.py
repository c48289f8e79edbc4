"""Fixtures of the tests with the real Envoy."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from loadtest.bench.runner.server import ServerProcess
from tests.support.envoy import Envoy, adapted, load_shipped, require_envoy, scripted_replicas
from tests.support.models import ROOT

SHIPPED = ROOT / "deploy" / "envoy" / "envoy.yaml"
LOCAL = ROOT / "deploy" / "local" / "server.toml"


@dataclass
class Site:
    """Replicas behind Envoy."""

    replicas: list[ServerProcess]
    envoy: Envoy


@contextmanager
def run_site(num: int, *overrides: str, drain_s: int = 60) -> Iterator[Site]:
    with ExitStack() as stack:
        replicas = stack.enter_context(scripted_replicas(num, ("engine.scripted_times=instant", *overrides), LOCAL))
        document = adapted(load_shipped(SHIPPED), [each.ready["address"] for each in replicas])
        yield Site(replicas, stack.enter_context(Envoy.running(document, num, drain_s=drain_s)))


@pytest.fixture(scope="session")
def envoy_binary() -> str:
    """Return the path of the real Envoy."""
    return require_envoy()


@pytest.fixture(scope="session")
def site(envoy_binary: str) -> Iterator[Site]:
    """Yield three replicas behind Envoy, which tests leave as they are."""
    with run_site(3) as running:
        yield running
