"""Real server processes with the scripted engine, which share a Redis."""

import itertools
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.processes.child import Child
from tests.support.models import TARGET
from tests.support.server import FREE_PORTS, UNHURRIED

START_TIMEOUT_S = 120.0
_ENDED_WELL = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_numbers = itertools.count(1)
_COMMAND = ("-m", "completion_server", "serve", "--json")


class Replica:
    """A server process. Its editors' names are trusted, as behind a proxy that authenticates them."""

    def __init__(self, name: str, redis_address: str, overrides: Sequence[str] = ()) -> None:
        """Start the process; `wait` until it is ready."""
        settings = (
            *FREE_PORTS,
            *UNHURRIED,
            "engine.kind=scripted",
            f"engine.model={TARGET}",
            "admission.trust_user_names=true",
            "admission.user_requests_per_s=0",
            f"redis.replica_id={name}",
            f'redis.addresses=["{redis_address}"]' if redis_address else "redis.addresses=[]",
            *overrides,
        )
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self.name = name
        self.child = Child(name, (sys.executable, *_COMMAND, *flags), is_piped=True)
        self._ready: dict[str, Any] = {}

    def wait(self) -> "Replica":
        """Wait until it serves."""
        self._ready = self.child.read_json(START_TIMEOUT_S)
        return self

    @property
    def address(self) -> str:
        """Where editors call it."""
        return str(self._ready["address"])

    @property
    def admin_address(self) -> str:
        """Where operators call it."""
        return str(self._ready["admin_address"])

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of its metrics page."""
        return str(self._ready["metrics_address"]).removeprefix("http://").removesuffix("/metrics")

    def status(self) -> admin_pb2.GetStatusResponse:
        """Return what an operator sees."""
        with grpc.insecure_channel(self.admin_address) as channel:
            answer: admin_pb2.GetStatusResponse = AdminServiceStub(channel).GetStatus(
                admin_pb2.GetStatusRequest(), timeout=10
            )
            return answer

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


@contextmanager
def running_replicas(redis_addresses: Sequence[str], *overrides: str) -> Iterator[list[Replica]]:
    """Run a server for each address at which it finds Redis; stop them by their process ids."""
    started: list[Replica] = []
    try:
        for number, address in enumerate(redis_addresses):
            started.append(Replica(f"replica-{number}", address, overrides))
        with ThreadPoolExecutor(len(started)) as pool:
            yield list(pool.map(Replica.wait, started))
    finally:
        for replica in started:
            replica.child.stop()


@dataclass
class AskingUsers:
    """Users who ask one after another, each on all servers in turn, until stopped."""

    replicas: Sequence[Replica]
    is_stopped: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list)
    num_answered: int = 0

    def ask_on(self, user: str) -> None:
        channels = [grpc.insecure_channel(replica.address) for replica in self.replicas]
        stubs = itertools.cycle([CompletionServiceStub(channel) for channel in channels])
        while not self.is_stopped.is_set():
            number = next(_numbers)
            request = pb.CompleteRequest(session_id=user, sequence=number, prefix=f"n = {number} + ", max_tokens=4)
            try:
                answer = list(next(stubs).Complete(request, timeout=10, metadata=(("x-user-id", user),)))
            except grpc.RpcError as error:
                self.failures.append(str(error))
                continue
            if answer[-1].end.finish_reason in _ENDED_WELL:
                self.num_answered += 1
            else:
                self.failures.append(str(answer[-1]))
        for channel in channels:
            channel.close()


@contextmanager
def asking_users(replicas: Sequence[Replica]) -> Iterator[AskingUsers]:
    """Have four users ask, and check that none of their requests failed."""
    asking = AskingUsers(replicas)
    threads = [threading.Thread(target=asking.ask_on, args=(f"user {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield asking
    finally:
        asking.is_stopped.set()
        for thread in threads:
            thread.join(30)
    assert asking.failures == []


def each_available(replicas: Sequence[Replica], expected: float) -> Callable[[], bool]:
    """Return a condition: every server says whether Redis is available."""
    return lambda: all(each.metric("completion_redis_available") == expected for each in replicas)
