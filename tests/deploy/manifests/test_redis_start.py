"""deploy/components/redis/start.sh with real Redis servers and Sentinels: three "pods" on three addresses of loopback.

They use the ports of the pods, which no other test uses.
"""

import os
import random
import resource
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.deploy.manifests.targets import rendered, server_config
from tests.support.certificates import Identity, make_identity_in
from tests.support.kustomize import DEPLOY, one
from tests.support.redis_servers import require_redis, wait_until

pytestmark = pytest.mark.full

SCRIPT = DEPLOY / "components" / "redis" / "start.sh"
PASSWORDS = {"password": "of-servers", "admin-password": "of-operators", "sentinel-password": "of-sentinels"}
FAILOVER_S = 60.0
COPY_S = 20.0
FOLDER_BYTES = 1 << 20
"""The most that a process may write into a file here. A pod's folder is small, too."""


class Pod:
    """A Redis and a Sentinel with an address of their own, as start.sh starts them in a pod."""

    def __init__(self, name: str, peers: list[str], folder: Path, tls: Path | None) -> None:
        self.name = name
        self._folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "NAME": name,
            "BIND": name,
            "PEERS": " ".join(peers),
            "SECRETS": str(folder / "secrets"),
            "DOWN_AFTER_MS": "1000",
            "RENEW_S": "0.5",
        }
        if tls:
            self._environment["TLS"] = str(tls)
        self._tls = tls
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for role in ("redis", "sentinel"):
            data = self._folder / f"{self.name}-{role}"
            data.mkdir(exist_ok=True)
            with (data / "log").open("ab") as log:
                process = subprocess.Popen(
                    ["sh", str(SCRIPT), role],
                    env=self._environment | {"DATA": str(data)},
                    stdout=log,
                    stderr=log,
                    restore_signals=False,  # a write above the limit is an error then, and no signal
                )
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FOLDER_BYTES, FOLDER_BYTES))
            self._processes[role] = process

    def add_password(self, password: str) -> str:
        """Run the script's command as `kubectl exec -i` does; return its output."""
        command = ["sh", str(SCRIPT), "add-password"]
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
        return str(subprocess.run(command, env=self._environment, input=f"{password}\n", **options).stdout)

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(FAILOVER_S)
        self._processes.clear()

    def connect(self, port: int, password: str | None = None, username: str | None = None) -> "redis.Redis[str]":
        options: dict[str, Any] = {"decode_responses": True, "socket_timeout": 2}
        if self._tls:
            # The names of pods are addresses here, which the certificate does not have.
            options |= {"ssl": True, "ssl_ca_certs": str(self._tls / "ca.crt"), "ssl_check_hostname": False}
        return redis.Redis(self.name, port, username=username, password=password, **options)

    @property
    def tls(self) -> Path:
        assert self._tls is not None
        return self._tls

    def runs(self, role: str) -> bool:
        return self._processes[role].poll() is None

    def replication(self) -> dict[str, Any]:
        with self.connect(6379, PASSWORDS["admin-password"]) as client:
            found: dict[str, Any] = client.info("replication")
            return found

    def sentinel_state(self) -> dict[str, Any]:
        with self.connect(26379, PASSWORDS["sentinel-password"]) as client:
            found: dict[str, Any] = client.sentinel_master("mymaster")
            return found


@contextmanager
def running_pods(folder: Path, tls: Path | None = None) -> Iterator[list[Pod]]:
    require_redis()
    secrets = folder / "secrets"
    secrets.mkdir()
    for name, text in PASSWORDS.items():
        (secrets / name).write_text(text + "\n", encoding="utf-8")
    network = f"127.{random.SystemRandom().randrange(1, 255)}.{random.SystemRandom().randrange(1, 255)}"
    names = [f"{network}.{index}" for index in (1, 2, 3)]
    with ExitStack() as stack:
        pods = [Pod(name, names, folder, tls) for name in names]
        for pod in pods:
            stack.callback(pod.kill)
            pod.start()
        wait_until(lambda: all(holds(lambda pod: bool(pod.sentinel_state()), pod) for pod in pods), FAILOVER_S)
        yield pods


def holds(check: Callable[[Pod], bool], pod: Pod) -> bool:
    """Return whether a check holds of a pod; not of one that does not answer."""
    try:
        return check(pod)
    except redis.RedisError:
        return False


def is_complete(pod: Pod) -> bool:
    """Return whether a Sentinel knows a master that is up, both replicas, and the two other Sentinels."""
    state = pod.sentinel_state()
    counts = (state["num-slaves"], state["num-other-sentinels"])
    return counts == (2, 2) and "down" not in str(state["flags"])


def master_of(pods: list[Pod]) -> str:
    """Return the name of the one master that is up, or "" while there is none or more than one."""
    found = [pod.name for pod in pods if holds(lambda pod: bool(pod.replication()["role"] == "master"), pod)]
    return found[0] if len(found) == 1 else ""


def wait_joined(pods: list[Pod], master: str) -> None:
    """Wait until pods are replicas of a master."""

    def has_joined(pod: Pod) -> bool:
        found = pod.replication()
        state = (found["role"], found.get("master_host"), found.get("master_link_status"))
        return state == ("slave", master, "up")

    wait_until(lambda: all(holds(has_joined, pod) for pod in pods), FAILOVER_S)


def wait_complete(pods: list[Pod]) -> None:
    wait_until(lambda: all(holds(is_complete, pod) for pod in pods), FAILOVER_S)


@pytest.mark.parametrize("has_tls", [False, True], ids=["in clear", "tls"])
def test_a_lost_master_is_replaced_and_joins_as_a_replica(has_tls: bool, tmp_path: Path) -> None:
    tls = make_tls(tmp_path, make_identity_in(tmp_path, "authority")) if has_tls else None
    with running_pods(tmp_path, tls) as pods:
        first, *others = pods
        wait_complete(pods)
        assert master_of(pods) == first.name
        wait_joined(others, first.name)
        first.kill()
        wait_until(lambda: master_of(others) != "", FAILOVER_S)
        second = master_of(others)
        first.start()
        wait_joined([first], second)
        wait_complete(pods)
        assert master_of(pods) == second


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity_in(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, authority: Identity) -> Iterator[list[Pod]]:
    """Yield three pods with TLS, as the regions run them."""
    folder = tmp_path_factory.mktemp("pods")
    with running_pods(folder, make_tls(folder, authority)) as running:
        yield running


def test_the_servers_user_may_do_what_servers_do_and_no_more(pods: list[Pod]) -> None:
    settings = server_config(list(rendered("redis"))).redis
    with pods[0].connect(6379, PASSWORDS["password"], settings.username) as client:
        key = f"{settings.key_prefix}:x"
        assert client.set(key, "1", px=1000)
        assert client.incrby(key, 2) == 3
        assert client.expire(key, 1)
        for command in ("CONFIG GET *", "EVAL return 0", "KEYS *", "FLUSHALL", "GET other", "PUBLISH completion:x y"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())
    for port in (6379, 26379):
        with pytest.raises(redis.exceptions.AuthenticationError), pods[0].connect(port) as client:
            client.ping()
    with pods[0].connect(6379, PASSWORDS["admin-password"]) as client:
        config = client.config_get("save", "appendonly", "maxmemory-policy")
    assert config == {"save": "", "appendonly": "no", "maxmemory-policy": "allkeys-lru"}


def test_a_further_password_is_valid_beside_the_old_one(pods: list[Pod]) -> None:
    for pod in pods:
        assert pod.add_password("newer") == "OK\n"
        for password in (PASSWORDS["password"], "newer"):
            with pod.connect(6379, password, "completion") as client:
                assert client.ping()


def test_with_tls_nothing_is_in_clear(pods: list[Pod]) -> None:
    wait_joined(pods[1:], pods[0].name)
    for port in (6379, 26379):
        with pytest.raises(redis.RedisError) as refused, redis.Redis(pods[0].name, port, socket_timeout=2) as client:
            client.ping()
        assert not isinstance(refused.value, redis.AuthenticationError), "it asks for a password in clear"


@pytest.mark.parametrize("has_keys", [False, True], ids=["empty", "with keys of its own"])
def test_a_replica_copies_more_than_its_folder_holds(pods: list[Pod], has_keys: bool) -> None:
    first, other = pods[0], pods[1]
    wait_joined([other], first.name)
    with first.connect(6379, PASSWORDS["admin-password"]) as client:
        client.config_set("repl-diskless-sync-delay", 0)
        for index in range(3):
            client.set(f"completion:{index}", random.randbytes(FOLDER_BYTES).hex())
        keys = sorted(client.keys())
    if has_keys:
        with other.connect(6379, PASSWORDS["admin-password"]) as client:
            client.replicaof("no", "one")
            client.set("completion:lost", "1")
            client.replicaof(first.name, 6379)
    else:
        other.kill()
        other.start()

    def has_copied(pod: Pod) -> bool:
        with pod.connect(6379, PASSWORDS["admin-password"]) as client:
            return pod.replication().get("master_link_status") == "up" and sorted(client.keys()) == keys

    wait_until(lambda: holds(has_copied, other), COPY_S)


def test_a_renewed_certificate_is_taken_without_a_restart_by_hand(
    pods: list[Pod], authority: Identity, tmp_path: Path
) -> None:
    first = pods[0]
    before = ssl.get_server_certificate((first.name, 6379))
    assert ssl.get_server_certificate((first.name, 26379)) == before
    for path in make_tls(tmp_path, authority).iterdir():
        path.replace(first.tls / path.name)
    wait_until(lambda: ssl.get_server_certificate((first.name, 6379)) != before, FAILOVER_S)
    assert first.runs("redis")
    wait_until(lambda: not first.runs("sentinel"), FAILOVER_S)  # kubelet starts its container again then


def make_tls(folder: Path, authority: Identity) -> Path:
    """Write what cert-manager writes into a Secret."""
    identity = make_identity_in(folder, "redis", issuer=authority)
    tls = folder / "tls"
    tls.mkdir()
    files = {"ca.crt": authority.certificate, "tls.crt": identity.certificate, "tls.key": identity.key}
    for name, source in files.items():
        (tls / name).write_bytes(source.read_bytes())
    return tls


def test_the_container_starts_the_script_with_what_it_needs() -> None:
    objects = rendered("redis")
    assert one(objects, "ConfigMap", "redis")["data"]["start.sh"] == SCRIPT.read_text(encoding="utf-8")
    pod = one(objects, "StatefulSet", "redis")["spec"]["template"]["spec"]
    for container in pod["containers"]:
        assert container["command"] == ["sh", "/etc/redis/start.sh", container["name"]]
        given = {each["name"] for each in container["env"]}
        assert given == {"POD_NAME", "NAME", "BIND", "PEERS", "SECRETS", "DATA", "TLS"}
    memory = pod["containers"][0]["resources"]["limits"]["memory"]
    assert memory == "512Mi"
    assert "maxmemory 400mb" in SCRIPT.read_text(encoding="utf-8")
