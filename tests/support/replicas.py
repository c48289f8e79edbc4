"""Servers with the scripted engine in one loop of a thread, which share a Redis."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import grpc

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.app.engine_factory import make_engine_factory
from tests.support.background import Background, background_loop
from tests.support.server import START_TIMEOUT_S, STOP_TIMEOUT_S, RunningServer, make_config, run_server

_ENDED_WELL = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Replica:
    """A running server. Its editors' names are trusted, as behind a proxy that authenticates them."""

    name: str
    server: RunningServer

    @property
    def address(self) -> str:
        """Where editors call it."""
        return self.server.ready.address

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of its metrics page."""
        return self.server.ready.metrics_address

    def status(self) -> admin_pb2.GetStatusResponse:
        """Return what an operator sees."""
        with grpc.insecure_channel(self.server.ready.admin_address) as channel:
            answer: admin_pb2.GetStatusResponse = AdminServiceStub(channel).GetStatus(
                admin_pb2.GetStatusRequest(), timeout=10
            )
            return answer


def start_replica(
    name: str, redis_address: str, overrides: Sequence[str], background: Background, stack: ExitStack
) -> Replica:
    """Start a server that finds Redis at an address, or has none, until `stack` is closed."""
    config = make_config(
        "engine.kind=scripted",
        "admission.trust_user_names=true",
        "admission.user_requests_per_s=0",
        f"redis.replica_id={name}",
        f'redis.addresses=["{redis_address}"]' if redis_address else "redis.addresses=[]",
        *overrides,
    )
    running = run_server(config, make_engine_factory(config))
    server = background.run(running.__aenter__(), START_TIMEOUT_S)
    stack.callback(lambda: background.run(running.__aexit__(None, None, None), 2 * STOP_TIMEOUT_S))
    return Replica(name, server)


@contextmanager
def running_replicas(redis_addresses: Sequence[str], *overrides: str) -> Iterator[list[Replica]]:
    """Run a server for each address at which it finds Redis."""
    with background_loop() as background, ExitStack() as stack:
        yield [
            start_replica(f"replica-{number}", address, overrides, background, stack)
            for number, address in enumerate(redis_addresses)
        ]


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
    return lambda: all(each.server.count("completion_redis_available") == expected for each in replicas)
