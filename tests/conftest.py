"""Settings and fixtures of all tests: no network, the Hypothesis profiles, one shared vLLM engine, Redis."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import settings

from tests.support.certificates import MakeIdentity, make_identity_in
from tests.support.redis_servers import Cluster, RedisServer, Sentinels, running, running_cluster, running_sentinels
from tests.support.vllm import asynchronous_scheduling, make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytest_plugins = ["tests.support.limits"]

# Tests load models from folders. Without this, each file that a folder lacks is requested from the hub, with retries.
os.environ["HF_HUB_OFFLINE"] = "1"

START_TIMEOUT_S = 240.0
"""For a real engine, on machines that are busy with other things."""

# A shell starts background commands with SIGINT ignored, and a test could not interrupt a command of its own then.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `--hypothesis-profile full` selects the other profile. Tests state their number of examples as a multiple of the
# profile's. "ci" has the same examples in each run: no change fails by another's fault. "full" looks for new ones.
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("full", max_examples=500, deadline=None)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Restore the levels of logs after each test: a server in the test's process sets them."""
    loggers = [logging.getLogger(), logging.getLogger("completion_server")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest_asyncio.fixture(scope="session")
async def vllm_engine() -> "AsyncIterator[VllmEngine]":
    """Yield a vLLM engine with a draft model and asynchronous scheduling. A test must leave it idle."""
    engine = make_vllm_engine()
    with asynchronous_scheduling():
        async with asyncio.timeout(START_TIMEOUT_S):
            await engine.start()
    yield engine
    async with asyncio.timeout(START_TIMEOUT_S):
        await engine.stop()


@pytest.fixture
def doomed_vllm_engine(vllm_engine: "VllmEngine") -> "VllmEngine":
    """Return the shared engine for the test that stops it, which runs last."""
    return vllm_engine


LONGEST = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        "draft_model/test_pair",
        "draft_model/test_training",
        "engine/on_vllm/test_vllm_environment",
        "loadtest/simulation/test_simulation_world",
        "engine/speculation/test_speculation_trial",
        "test_server_commands",
    )
)
"""Files that one worker has for many seconds. The other folders with such files come before tests/unit anyway."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that no worker ends long after the others, and last what stops the engine."""

    def place(item: pytest.Item) -> tuple[bool, bool]:
        is_last = "doomed_vllm_engine" in getattr(item, "fixturenames", ())
        return is_last, item.nodeid.partition("::")[0] not in LONGEST

    items.sort(key=place)


@pytest.fixture
def make_identity(tmp_path: Path) -> MakeIdentity:
    """Return a function that makes keys and certificates."""
    return partial(make_identity_in, tmp_path)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Yield a Redis that all tests share: use keys of a prefix of your own, and never stop or freeze it."""
    server = RedisServer()
    with running(server):
        yield server


@pytest.fixture
def make_redis() -> Iterator[Callable[..., RedisServer]]:
    """Yield a function that starts a RedisServer with the options that it is given."""
    with ExitStack() as stack:

        def make(**options: Any) -> RedisServer:
            server = RedisServer(**options)
            stack.enter_context(running(server))
            return server

        yield make


@pytest.fixture
def redis_sentinels() -> Iterator[Sentinels]:
    """Yield a master, a replica and three Sentinels. They take about 5 s to find each other."""
    with running_sentinels() as sentinels:
        yield sentinels


@pytest.fixture
def redis_cluster() -> Iterator[Cluster]:
    """Yield a cluster of three masters with a replica each. They take about 5 s to find each other."""
    with running_cluster() as cluster:
        yield cluster
