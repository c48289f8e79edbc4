"""deploy/components/redis/start.sh with real Redis servers and Sentinels: three "pods" on three addresses of loopback.

They use the ports of the pods, which no other test uses.
"""

import os
import random
import resource
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
ADMIN, SENTINEL = PASSWORDS["admin-password"], PASSWORDS["sentinel-password"]
FAILOVER_S = 60.0
FOLDER_BYTES = 1 << 20
"""The most that a process may write into a file here. A pod's folder is small, too."""


class Pod:
    """A Redis and a Sentinel with an address of their own, as start.sh starts them in a pod."""

    def __init__(self, name: str, peers: list[str], folder: Path) -> None:
        self.name, self.tls, self._folder = name, folder / "tls", folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "NAME": name,
            "BIND": name,
            "PEERS": " ".join(peers),
            "SECRETS": str(folder / "secrets"),
            "TLS": str(self.tls),
            "DOWN_AFTER_MS": "1000",
            "RENEW_S": "0.5",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for role in ("redis", "sentinel"):
            data = self._folder / f"{self.name}-{role}"
            data.mkdir(exist_ok=True)
            command, env = ["sh", str(SCRIPT), role], self._environment | {"DATA": str(data)}
            # With restored signals a write above the limit would be one, and not an error.
            self.processes[role] = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, restore_signals=False)
            resource.prlimit(self.processes[role].pid, resource.RLIMIT_FSIZE, (FOLDER_BYTES, FOLDER_BYTES))

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(FAILOVER_S)
        self.processes.clear()

    def add_password(self, password: str) -> str:
        """Run the script's command as `kubectl exec -i` does; return its output."""
        command, given = ["sh", str(SCRIPT), "add-password"], f"{password}\n"
        return subprocess.check_output(command, env=self._environment, input=given, text=True, timeout=FAILOVER_S)

    def connect(self, port: int, password: str | None = None, username: str | None = None) -> "redis.Redis[str]":
        # The names of pods are addresses here, which the certificate does not have.
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(self.tls / "ca.crt"), "ssl_check_hostname": False}
        options: dict[str, Any] = {"username": username, "password": password, "decode_responses": True}
        return redis.Redis(self.name, port, socket_timeout=2, **options, **tls)

    def replication(self) -> dict[str, Any]:
        with self.connect(6379, ADMIN) as client:
            return dict(client.info("replication"))

    def is_complete(self) -> bool:
        """Return whether the Sentinel knows a master that is up, both replicas, and the two other Sentinels."""
        with self.connect(26379, SENTINEL) as client:
            state: dict[str, Any] = client.sentinel_master("mymaster")
        return (state["num-slaves"], state["num-other-sentinels"]) == (2, 2) and "down" not in str(state["flags"])


def holds(check: Callable[[Pod], bool], *pods: Pod) -> bool:
    """Return whether a check holds of all pods; not of one that does not answer."""
    try:
        return all(map(check, pods))
    except redis.RedisError:
        return False


def master_of(pods: list[Pod]) -> Pod | None:
    """Return the one master that is up, or None while there is none or more than one."""
    found = [pod for pod in pods if holds(lambda pod: bool(pod.replication()["role"] == "master"), pod)]
    return found[0] if len(found) == 1 else None


def wait_joined(pods: list[Pod], master: Pod) -> None:
    """Wait until pods are replicas of a master."""

    def has_joined(pod: Pod) -> bool:
        found = pod.replication()
        state = (found["role"], found.get("master_host"), found.get("master_link_status"))
        return state == ("slave", master.name, "up")

    wait_until(lambda: holds(has_joined, *pods), FAILOVER_S)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity_in(tmp_path_factory.mktemp("authority"), "authority")


def make_tls(folder: Path, authority: Identity) -> Path:
    """Write what cert-manager writes into a Secret."""
    identity = make_identity_in(folder, "redis", issuer=authority)
    (folder / "tls").mkdir()
    files = {"ca.crt": authority.certificate, "tls.crt": identity.certificate, "tls.key": identity.key}
    for name, source in files.items():
        (folder / "tls" / name).write_bytes(source.read_bytes())
    return folder / "tls"


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, authority: Identity) -> Iterator[list[Pod]]:
    """Yield three pods."""
    require_redis()
    folder = tmp_path_factory.mktemp("pods")
    make_tls(folder, authority)
    (folder / "secrets").mkdir()
    for name, text in PASSWORDS.items():
        (folder / "secrets" / name).write_text(text + "\n", encoding="utf-8")
    network = ".".join(map(str, (127, *random.SystemRandom().sample(range(1, 255), 2))))
    names = [f"{network}.{index}" for index in (1, 2, 3)]
    pods = [Pod(name, names, folder) for name in names]
    with ExitStack() as stack:
        for pod in pods:
            stack.callback(pod.kill)
            pod.start()
        wait_until(lambda: holds(Pod.is_complete, *pods), FAILOVER_S)
        yield pods


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
    with pods[0].connect(6379, ADMIN) as client:
        config = client.config_get("save", "appendonly", "maxmemory-policy")
    assert config == {"save": "", "appendonly": "no", "maxmemory-policy": "allkeys-lru"}


def test_nobody_is_served_without_a_password_or_in_clear(pods: list[Pod]) -> None:
    wait_joined(pods[1:], pods[0])
    for port in (6379, 26379):
        with pytest.raises(redis.exceptions.AuthenticationError), pods[0].connect(port) as client:
            client.ping()
        with pytest.raises(redis.RedisError) as refused, redis.Redis(pods[0].name, port, socket_timeout=2) as client:
            client.ping()
        assert not isinstance(refused.value, redis.AuthenticationError), "it asks for a password in clear"


def test_a_further_password_is_valid_beside_the_old_one(pods: list[Pod]) -> None:
    for pod in pods:
        assert pod.add_password("newer") == "OK\n"
        for password in (PASSWORDS["password"], "newer"):
            with pod.connect(6379, password, "completion") as client:
                assert client.ping()


@pytest.mark.parametrize("has_keys", [False, True], ids=["empty", "with keys of its own"])
def test_a_replica_copies_more_than_its_folder_holds(pods: list[Pod], has_keys: bool) -> None:
    first, other = pods[:2]
    wait_joined([other], first)
    with first.connect(6379, ADMIN) as client:
        client.config_set("repl-diskless-sync-delay", 0)
        for index in range(3):
            client.set(f"completion:{index}", random.randbytes(FOLDER_BYTES).hex())
        keys = sorted(client.keys())
    if has_keys:
        with other.connect(6379, ADMIN) as client:
            client.replicaof("no", "one")
            client.set("completion:lost", "1")
            client.replicaof(first.name, 6379)
    else:
        other.kill()
        other.start()

    def has_copied(pod: Pod) -> bool:
        with pod.connect(6379, ADMIN) as client:
            return pod.replication().get("master_link_status") == "up" and sorted(client.keys()) == keys

    wait_until(lambda: holds(has_copied, other), FAILOVER_S)


def test_a_lost_master_is_replaced_and_joins_as_a_replica(pods: list[Pod]) -> None:
    first, *others = pods
    wait_until(lambda: holds(Pod.is_complete, *pods), FAILOVER_S)
    assert master_of(pods) is first
    wait_joined(others, first)
    first.kill()
    wait_until(lambda: master_of(others) is not None, FAILOVER_S)
    second = master_of(others)
    assert second is not None
    first.start()
    wait_joined([first], second)
    wait_until(lambda: holds(Pod.is_complete, *pods), FAILOVER_S)
    assert master_of(pods) is second


def test_a_renewed_certificate_is_taken_without_a_restart_by_hand(
    pods: list[Pod], authority: Identity, tmp_path: Path
) -> None:
    first = pods[0]
    before = ssl.get_server_certificate((first.name, 6379))
    assert ssl.get_server_certificate((first.name, 26379)) == before
    for path in make_tls(tmp_path, authority).iterdir():
        path.replace(first.tls / path.name)
    wait_until(lambda: ssl.get_server_certificate((first.name, 6379)) != before, FAILOVER_S)
    assert first.processes["redis"].poll() is None
    # Kubelet starts its container again then.
    wait_until(lambda: first.processes["sentinel"].poll() is not None, FAILOVER_S)


def test_the_container_starts_the_script_with_what_it_needs() -> None:
    objects = rendered("redis")
    assert one(objects, "ConfigMap", "redis")["data"]["start.sh"] == SCRIPT.read_text(encoding="utf-8")
    pod = one(objects, "StatefulSet", "redis")["spec"]["template"]["spec"]
    for container in pod["containers"]:
        assert container["command"] == ["sh", "/etc/redis/start.sh", container["name"]]
        given = {each["name"] for each in container["env"]}
        assert given == {"POD_NAME", "NAME", "BIND", "PEERS", "SECRETS", "DATA", "TLS"}
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "512Mi"
    assert "maxmemory 400mb" in SCRIPT.read_text(encoding="utf-8")
