"""What replicas share, how they are told apart, what others can read, and the stop."""

import asyncio
import contextlib
import logging
import re
import socket
from pathlib import Path

import pytest

from completion_server.app import shared_state
from completion_server.app.checks import refuse_exposure, warn_of_exposure
from completion_server.app.shared_state import SharedState
from completion_server.app.shutdown import Shutdown
from completion_server.config import load_config
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import ConfigError
from completion_server.core.request import Caller
from completion_server.requests.isolation import Isolation
from completion_server.state.secret import Secret
from completion_server.text.prompt.builder import PromptBuilder
from tests.support.cancels import cancel_and_wait
from tests.support.certificates import MakeIdentity
from tests.support.redis_servers import free_port
from tests.support.server import eventually, make_config
from tests.unit.text.prompt.prompts import builder_of


async def test_a_part_that_fails_runs_again_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_state, "_RESTART_S", 0.01)
    config = load_config(None, [f'redis.addresses=["127.0.0.1:{free_port()}"]'], {})
    shared = SharedState(config, MonotonicClock())
    num_runs = 0

    async def fail_twice() -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs <= 2:
            raise ZeroDivisionError
        await asyncio.Event().wait()

    assert shared.lanes is not None
    monkeypatch.setattr(shared.lanes, "run", fail_twice)
    task = asyncio.create_task(shared.run())
    await eventually(lambda: num_runs == 3)
    assert not task.done()
    failures = [record for record in caplog.records if record.exc_info and record.levelno == logging.ERROR]
    assert [record.getMessage().partition(" ")[0] for record in failures] == ["SharedLanes"] * 2
    await cancel_and_wait(task)
    assert task.cancelled()


def test_gauges_tell_whether_redis_is_heard() -> None:
    config = load_config(None, [f'redis.addresses=["127.0.0.1:{free_port()}"]'], {})
    gauges = SharedState(config, MonotonicClock()).gauges()
    assert gauges["redis_listening"]() == 0
    assert "redis_listening" not in SharedState(load_config(None, [], {}), MonotonicClock()).gauges()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("server.listen=127.0.0.1:50051",), f"{socket.gethostname()}-50051"),
        (("server.listen=127.0.0.1:50051", "redis.replica_id=left"), "left"),
    ],
)
async def test_a_replica_has_the_same_name_after_a_restart(overrides: tuple[str, ...], expected: str) -> None:
    config = load_config(None, (*overrides, 'redis.addresses=["127.0.0.1:6379"]', "cache.enabled=false"), {})
    for _ in range(2):
        store = SharedState(config, MonotonicClock()).store
        assert store is not None
        assert store.settings.replica_id == expected


async def test_replicas_on_ports_that_the_system_picks_have_different_names() -> None:
    overrides = ("server.listen=127.0.0.1:0", 'redis.addresses=["127.0.0.1:6379"]', "cache.enabled=false")
    stores = [SharedState(load_config(None, overrides, {}), MonotonicClock()).store for _ in range(2)]
    assert len({store.settings.replica_id for store in stores if store is not None}) == 2


SECRET = Secret(bytes(range(32)))


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    return builder_of("qwen")


def identity_of(prompts: PromptBuilder, *overrides: str) -> str:
    keys = shared_state._completion_keys(make_config(*overrides), prompts, SECRET, Isolation(bytes(32)))
    return keys.identity_hash


def test_hosts_may_keep_the_model_in_different_folders(prompts: PromptBuilder) -> None:
    same = {identity_of(prompts, *overrides) for overrides in ((), ("engine.vllm.download_dir=/models",))}
    assert len(same) == 1
    assert identity_of(prompts, "engine.vllm.block_size=32") not in same


def test_the_identity_is_logged_once(prompts: PromptBuilder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "completion_server.app.shared_state"):
        identity = identity_of(prompts)
    assert [identity in message for message in caplog.messages] == [True]


def test_replicas_with_one_secret_have_the_same_salts_and_others_their_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    caller = Caller("ada", "s", "acme", is_verified=True)

    def salts(*overrides: str) -> set[str]:
        """Return the salts of a caller on two servers."""
        config = load_config(None, overrides, {})
        return {SharedState(config, MonotonicClock()).isolation.salt(caller) for _ in range(2)}

    kept, shared, alone = salts(f"redis.secret_file={secret}"), salts('redis.addresses=["127.0.0.1:6379"]'), salts()
    assert (len(kept), len(shared), len(alone)) == (1, 1, 2)
    assert len(kept | shared | alone) == 4


REMOTE = ('redis.addresses=["redis.example:6379"]',)
OPEN = "0.0.0.0:50051"


@pytest.mark.parametrize(
    ("overrides", "address", "expected"),
    [
        ((), "127.0.0.1:50051", ""),
        (
            (), OPEN,
            r"server\.insecure: server\.listen: other machines can reach 0\.0\.0\.0:50051, and it lacks TLS "
            r"\(server\.tls\) and authentication \(\[auth\]\): others can read what is typed or claim to be any user",
        ),
        (("server.http_listen=0.0.0.0:1",), "127.0.0.1:50051", "server.http_listen: other machines can reach 0"),
        (("server.metrics_listen=0.0.0.0:1",), "127.0.0.1:50051", "server.metrics_listen: listening on 0.0.0.0:1"),
        (('redis.addresses=["127.0.0.1:6379"]',), "127.0.0.1:50051", ""),
        (REMOTE, "127.0.0.1:50051", "redis.tls: off"),
        (('redis.addresses=["127.0.0.1:26379"]', "redis.topology=sentinel"), "127.0.0.1:50051", "redis.tls: off"),
        ((*REMOTE, "redis.tls.enabled=true"), "127.0.0.1:50051", ""),
    ],
)  # fmt: skip
def test_what_others_can_reach_without_protection_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overrides: tuple[str, ...], address: str, expected: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    warn_of_exposure(load_config(None, [*overrides, f"redis.secret_file={secret}"], {}), address)
    assert re.search(expected, caplog.text) if expected else caplog.text == ""


LISTENERS = ("listen", "http_listen", "admin_listen")


@pytest.mark.parametrize("key", LISTENERS)
def test_others_can_reach_no_listener_without_tls_and_authentication(make_identity: MakeIdentity, key: str) -> None:
    ours = make_identity("server")
    section = "admin_tls" if key == "admin_listen" else "tls"
    tls = (f"server.{section}.certificate={ours.certificate}", f"server.{section}.key={ours.key}")
    mutual = (*tls, f"server.{section}.client_ca={ours.certificate}", "admission.trust_user_names=true")

    def lacks(*overrides: str) -> str:
        try:
            refuse_exposure(load_config(None, overrides, {}))
        except ConfigError as error:
            return str(error)
        return ""

    reachable = f"server.{key}=10.0.0.1:1"
    begin = f"server.{key}: other machines can reach 10.0.0.1:1, and it lacks "
    assert lacks(reachable).startswith(f"{begin}TLS (server.{section}) and authentication ([auth]): set them")
    assert lacks(reachable, *tls).startswith(f"{begin}authentication ([auth]): set them")
    assert lacks(reachable, "server.insecure=true") == ""
    assert lacks(reachable, *mutual) == ""
    assert lacks(f"server.{key}=127.0.0.1:1") == ""


def test_each_listener_that_others_can_reach_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_exposure(load_config(None, [f"server.{key}=[::]:1" for key in LISTENERS], {}))
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [f"server.{key}" for key in LISTENERS]


WAIT_S = 30.0


async def test_a_task_that_fails_limits_the_end_of_the_others() -> None:
    loop, is_over, said = asyncio.get_running_loop(), asyncio.Event(), list[str]()

    def give_up(unfinished: str) -> None:
        said.append(unfinished)
        loop.call_soon_threadsafe(is_over.set)

    async def go_on() -> None:
        while not is_over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await is_over.wait()

    async def fail() -> None:
        raise ValueError

    shutdown = Shutdown(0.01, give_up)
    with pytest.RaisesGroup(ValueError):
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            with shutdown.begins_on_failure():
                group.create_task(go_on(), name="what goes on")
                group.create_task(fail())
                await asyncio.Event().wait()
    assert len(said) == 1
    assert "what goes on" in said[0]
