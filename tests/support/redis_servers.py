"""Real Redis processes on loopback: single servers, a master with its Sentinels, and a cluster. They keep nothing.

Everything here waits without an event loop; use it before and between what a test awaits.
"""

import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import Identity, make_identity_in
from tests.support.kustomize import require_programs
from tests.support.waits import GaveUpError

START_TIMEOUT_S = 20.0
CLI_TIMEOUT_S = 10.0
MASTER_NAME = "mymaster"
_MAX_ATTEMPTS = 20
_BUS_OFFSET = 10_000
"""How far the port of a cluster's bus is from the port for clients, unless configured."""


def require_redis() -> None:
    """Skip the test on a machine without Redis, and fail it if CI is set."""
    require_programs(("redis-server", "redis-cli", "redis-sentinel"), "redis-server redis-sentinel")


def free_port() -> int:
    """Return a port on loopback that is free, and below those that the system gives to outgoing connections.

    A client that tries such a port while its server is down could be connected to itself.
    """
    ports = (random.SystemRandom().randrange(10_000, 32_768 - _BUS_OFFSET) for _ in range(1_000))
    return next(port for port in ports if _can_listen(port) and _can_listen(port + _BUS_OFFSET))


def _can_listen(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
    """Block until a condition holds; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise GaveUpError(condition, timeout_s)
        time.sleep(0.02)


@dataclass(frozen=True)
class RedisTls:
    """What a Redis that speaks only TLS proves, and asks clients to prove."""

    server: Identity
    authority: Identity
    client: Identity
    """A client's identity from the same authority. Redis refuses clients without one."""

    @classmethod
    def make_in(cls, folder: Path) -> "RedisTls":
        """Write an authority, and a server's and a client's certificate by it."""
        authority = make_identity_in(folder, "authority")
        server, client = (make_identity_in(folder, name, issuer=authority) for name in ("redis", "client"))
        return cls(server, authority, client)


@dataclass
class RedisServer:
    """A redis-server process on 127.0.0.1. `start` it, and `stop` it in any case."""

    password: str = ""
    """Of the default user."""
    users: Sequence[str] = ()
    """ACL rules of other users: "alice on >secret ~* &* +@all"."""
    tls: RedisTls | None = None
    config: Sequence[str] = ()
    """Further lines of redis.conf: "maxmemory 2mb", "maxmemory-policy allkeys-lru"."""
    master: "RedisServer | None" = None
    """Makes this a read-only replica of a server that runs."""
    is_sentinel: bool = False
    port: int = 0
    """0 until the first start; the same after a restart."""

    def __post_init__(self) -> None:
        # Not in tmp_path: its name may be longer than a socket's may be.
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self.folder = Path(self._folder.name)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT. With `tls` the port speaks only TLS."""
        return f"127.0.0.1:{self.port}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket, which is there too, always without TLS."""
        return self.folder / "redis.sock"

    @property
    def is_running(self) -> bool:
        """Whether the process lives. A frozen one does."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "RedisServer":
        """Start the process and wait until it answers."""
        require_redis()
        wanted = self.port
        for _ in range(_MAX_ATTEMPTS):
            self.port = wanted or free_port()
            if self._starts():
                return self
        raise AssertionError(f"redis-server does not start: {self.log()}")

    def stop(self) -> None:
        """End the process, also a frozen one, and remove its folder. Does nothing the second time."""
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        """End the process with SIGKILL. Does nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def freeze(self) -> None:
        """Stop the process with SIGSTOP. The system goes on to accept connections; nothing is answered."""
        assert self._process is not None, "redis-server does not run"
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        assert self._process is not None, "redis-server does not run"
        self._process.send_signal(signal.SIGCONT)

    def cli(self, *arguments: str | int) -> str:
        """Run a command as the default user, over the Unix socket, and return redis-cli's output.

        Raises AssertionError if Redis answers with an error, or does not answer in time.
        """
        done = self._run_cli(*arguments)
        assert done.returncode == 0, f"redis-cli {arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO, such as "stats"."""
        lines = (line.partition(":") for line in self.cli("INFO", section).splitlines())
        return {name: value.strip() for name, separator, value in lines if separator}

    def log(self) -> str:
        """Return the log since the first start."""
        path = self.folder / "redis.log"
        return path.read_text() if path.exists() else ""

    def _starts(self) -> bool:
        """Start the process. Return False if it ends at once, because its port is taken."""
        path = self.folder / "redis.conf"
        path.write_text("".join(f"{line}\n" for line in self._config_lines()))
        command = ["redis-server", str(path), *(["--sentinel"] if self.is_sentinel else [])]
        self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: not self.is_running or self._run_cli("PING").stdout.strip() == "PONG")
        except BaseException:
            self.kill()
            raise
        if not self.is_running:
            assert "Address already in use" in self.log(), self.log()
        return self.is_running

    def _config_lines(self) -> Iterator[str]:
        yield from ("bind 127.0.0.1", f"dir {self.folder}", f"logfile {self.folder / 'redis.log'}")
        yield from (f"unixsocket {self.socket_path}", "unixsocketperm 700")
        if self.tls is None:
            yield f"port {self.port}"
        else:
            yield from ("port 0", f"tls-port {self.port}", f"tls-ca-cert-file {self.tls.authority.certificate}")
            yield from (f"tls-cert-file {self.tls.server.certificate}", f"tls-key-file {self.tls.server.key}")
            yield "tls-replication yes"
        if not self.is_sentinel:
            yield from ('save ""', "appendonly no", "repl-diskless-sync-delay 0")
        if self.password:
            yield f"requirepass {self.password}"
        if self.master is not None:
            yield from (f"replicaof 127.0.0.1 {self.master.port}", "replica-read-only yes")
            yield from ([f"masterauth {self.master.password}"] if self.master.password else [])
        yield from (f"user {rule}" for rule in self.users)
        yield from self.config

    def _run_cli(self, *arguments: str | int) -> subprocess.CompletedProcess[str]:
        credentials = ["--no-auth-warning", "-a", self.password] if self.password else []
        command = ["redis-cli", "-s", str(self.socket_path), "-e", *credentials, *map(str, arguments)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=CLI_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"redis-cli {arguments}: no answer within {CLI_TIMEOUT_S} s") from error


@contextmanager
def running(*servers: RedisServer) -> Iterator[None]:
    """Start servers in their order, and stop them all at the end."""
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in reversed(servers):
            server.stop()


@dataclass(frozen=True)
class Sentinels:
    """A master, its replica, and three Sentinels that agree on both."""

    first_master: RedisServer
    first_replica: RedisServer
    sentinels: Sequence[RedisServer]

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of each Sentinel."""
        return tuple(sentinel.address for sentinel in self.sentinels)

    @property
    def master(self) -> RedisServer:
        """The server that most Sentinels hold for the master."""
        answers = [self._master_port(sentinel) for sentinel in self.sentinels if sentinel.is_running]
        port = max(answers, key=answers.count)
        return next(each for each in (self.first_master, self.first_replica) if each.port == port)

    @staticmethod
    def _master_port(sentinel: RedisServer) -> int:
        return int(sentinel.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME).split()[1])


@contextmanager
def running_sentinels(
    down_after_ms: int = 1_000, password: str = "", tls: RedisTls | None = None, sentinel_password: str = ""
) -> Iterator[Sentinels]:
    """Yield Sentinels that replace a master within a few seconds after `down_after_ms` of its silence.

    The password is that of the servers; the Sentinels have one of their own, or none. TLS is for all of them.
    """
    master = RedisServer(password=password, tls=tls, config=[f"masterauth {password}"] if password else [])
    replica = RedisServer(password=password, tls=tls, master=master)
    with running(master, replica):
        wait_until(lambda: replica.info("replication").get("master_link_status") == "up")
        options = {"down-after-milliseconds": down_after_ms, "failover-timeout": 3 * down_after_ms}
        options |= {"auth-pass": password} if password else {}
        config = [f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master.port} 2"]
        config += [f"sentinel {name} {MASTER_NAME} {value}" for name, value in options.items()]
        config += [f"sentinel sentinel-pass {sentinel_password}"] if sentinel_password else []
        sentinels = [RedisServer(sentinel_password, is_sentinel=True, tls=tls, config=config) for _ in range(3)]
        with running(*sentinels):
            wait_until(lambda: all(map(_is_complete, sentinels)))
            yield Sentinels(master, replica, sentinels)


def _is_complete(sentinel: RedisServer) -> bool:
    """Return whether a Sentinel knows the replica and the two others."""
    words = sentinel.cli("SENTINEL", "MASTER", MASTER_NAME).splitlines()
    known = dict(zip(words[::2], words[1::2], strict=True))
    return known["num-slaves"] == "1" and known["num-other-sentinels"] == "2"


@dataclass(frozen=True)
class Cluster:
    """The nodes of a Redis Cluster, by their roles at the start."""

    masters: Sequence[RedisServer]
    replicas: Sequence[RedisServer]


@contextmanager
def running_cluster(num_masters: int = 3, num_replicas: int = 1, node_timeout_ms: int = 2_000) -> Iterator[Cluster]:
    """Yield a Redis Cluster that replaces a master some seconds after `node_timeout_ms` of its silence.

    Each master has `num_replicas` replicas. Without any, the slots of the other masters are still served.
    """
    timeout = f"cluster-node-timeout {node_timeout_ms}"
    config = ("cluster-enabled yes", timeout, "cluster-require-full-coverage no")
    nodes = [RedisServer(config=config) for _ in range(num_masters * (1 + num_replicas))]
    with running(*nodes):
        addresses = [node.address for node in nodes]
        nodes[0].cli("--cluster", "create", *addresses, "--cluster-replicas", num_replicas, "--cluster-yes")
        masters = [node for node in nodes if node.info("replication")["role"] == "master"]
        replicas = [node for node in nodes if node not in masters]
        wait_until(lambda: all("cluster_state:ok" in node.cli("CLUSTER", "INFO") for node in nodes))
        wait_until(lambda: all(node.info("replication").get("master_link_status") == "up" for node in replicas))
        yield Cluster(masters, replicas)
