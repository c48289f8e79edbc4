"""Newest wins over three real servers, whatever happens between them and Redis.

Random requests of a few users, each with several editors, come to random servers, while random faults come and go
between each server and Redis. Each request is given when the one before has begun, so their order is known.
"""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.replicas.conftest import NUM_REPLICAS, ReplicaSet
from tests.support.fault_proxy import Delay, FaultProxy

BOUND_S = 2.0
"""After all faults have ended: the breakers close, messages arrive, live requests are announced again."""
ANSWER_S = 20.0
ENDED_WELL = {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}
SUPERSEDED = pb.FINISH_REASON_SUPERSEDED
REPLICAS = st.integers(0, NUM_REPLICAS - 1)
_numbers = itertools.count()


FAULTS: dict[str, Callable[[FaultProxy], object]] = {
    "delay": lambda proxy: setattr(proxy.faults, "reply_delay", Delay(fixed_s=0.03)),
    "jitter": lambda proxy: setattr(proxy.faults, "request_delay", Delay(random_s=0.03)),
    "reset": FaultProxy.reset_all,
    "black hole": lambda proxy: setattr(proxy.faults, "black_hole", True),
    "refuse": lambda proxy: (proxy.refuse(), proxy.reset_all()),
    "drop": lambda proxy: setattr(proxy.faults, "drop_pushes", 0.5),
    "duplicate": lambda proxy: setattr(proxy.faults, "duplicate_pushes", 0.5),
}


@dataclass
class Asked:
    """A request and what came back for it, read by a thread."""

    name: str
    call: "grpc.CallIterator[pb.CompleteResponse]"
    begun: threading.Event = field(default_factory=threading.Event)
    """The server has accepted it: there was text, or an end."""
    ends: list[pb.End] = field(default_factory=list)
    error: grpc.RpcError | None = None
    is_cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Read the answer to its end."""
        try:
            for response in self.call:
                if response.HasField("end"):
                    self.ends.append(response.end)
                self.begun.set()
        except grpc.RpcError as error:
            self.error = error
        self.begun.set()
        self.done.set()

    def check(self) -> None:
        """Check that an answer that is complete has one end."""
        if not self.done.is_set() or self.is_cancelled:
            return
        assert self.error is None, f"{self.name}: {self.error}"
        assert len(self.ends) == 1, f"{self.name} has {len(self.ends)} ends"
        assert self.ends[0].finish_reason in {*ENDED_WELL, SUPERSEDED}, f"{self.name}: {self.ends[0]}"

    @property
    def is_superseded(self) -> bool:
        return bool(self.ends) and self.ends[0].finish_reason == SUPERSEDED


class Machine(RuleBasedStateMachine):
    """Users, servers and faults."""

    servers: ReplicaSet
    """Set by the test."""
    channels: list[grpc.Channel]
    num_operations = 0

    users = Bundle("users")

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[Asked]] = {}
        """Each user's requests in their order."""
        self.sequences = itertools.count(1)

    @invariant()
    def count(self) -> None:
        Machine.num_operations += 1

    @initialize(target=users)
    def begin(self) -> object:
        names = [f"user-{next(_numbers)}" for _ in range(2)]
        self.asked = {name: [] for name in names}
        return multiple(*names)

    @rule(user=users, editor=st.integers(0, 1), replica=REPLICAS)
    def ask(self, user: str, editor: int, replica: int) -> None:
        self.check_newest(user)
        number = next(self.sequences)
        request = pb.CompleteRequest(
            session_id=f"{user}-{editor}", sequence=number, prefix=f"number = {number} + ", max_tokens=500,
            mode=pb.MODE_MULTI_LINE, document_uri=f"file:///{editor}.py",
        )  # fmt: skip
        call = CompletionServiceStub(self.channels[replica]).Complete(
            request, timeout=ANSWER_S, metadata=(("x-user-id", user),)
        )
        asked = Asked(f"request {number} of {user} on replica {replica}", call)
        threading.Thread(target=asked.read, daemon=True).start()
        assert asked.begun.wait(ANSWER_S)
        self.asked[user].append(asked)

    @rule(user=users)
    def cancel_newest(self, user: str) -> None:
        self.check_newest(user)
        if self.asked[user]:
            self.asked[user][-1].is_cancelled = True
            self.asked[user][-1].call.cancel()

    @rule(replica=REPLICAS, kind=st.sampled_from(sorted(FAULTS)))
    def break_redis(self, replica: int, kind: str) -> None:
        proxy = self.servers.proxies[replica]

        async def change() -> None:
            FAULTS[kind](proxy)

        self.servers.background.run(change())

    @rule(replica=REPLICAS)
    def heal(self, replica: int) -> None:
        self.servers.background.run(self.servers.proxies[replica].heal())

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.3]))
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @rule()
    def settle(self) -> None:
        """After all faults have ended, one request of each user lives at most, and nothing older ended the newest."""
        self.servers.heal()
        deadline = time.monotonic() + BOUND_S
        while (alive := self.alive_beside_newer()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive, f"{[each.name for each in alive]} live beside newer requests"
        for user in self.asked:
            self.check_newest(user)

    def alive_beside_newer(self) -> list[Asked]:
        """Return the live requests of users who have a newer live one; one that was cancelled ends no other."""
        alive = ([each for each in requests if not each.done.is_set()] for requests in self.asked.values())
        return [each for requests in alive for each in requests[:-1]]

    def check_newest(self, user: str) -> None:
        for asked in self.asked[user]:
            asked.check()
        if self.asked[user]:
            newest = self.asked[user][-1]
            assert not newest.is_superseded, f"{newest.name} is the newest, and was superseded"

    def teardown(self) -> None:
        if self.asked:
            self.settle()
        for requests in self.asked.values():
            for each in requests:
                each.is_cancelled = True
                each.call.cancel()
                assert each.done.wait(ANSWER_S)


def run_machine(servers: ReplicaSet, num_examples: int, num_steps: int) -> int:
    """Run the machine; return the number of operations."""
    Machine.servers, Machine.num_operations = servers, 0
    Machine.channels = [grpc.insecure_channel(replica.address) for replica in servers.replicas]
    checks = list(HealthCheck)
    limits = settings(
        max_examples=num_examples, stateful_step_count=num_steps, deadline=None, suppress_health_check=checks
    )
    try:
        run_state_machine_as_test(Machine, settings=limits)
    finally:
        servers.heal()
        for channel in Machine.channels:
            channel.close()
    return Machine.num_operations


def test_newest_wins_on_three_servers(replica_set: ReplicaSet) -> None:
    assert run_machine(replica_set, num_examples=4, num_steps=40) > 100
    assert sum(replica.server.count("completion_lane_messages_received_total") for replica in replica_set.replicas) > 0


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_newest_wins_through_ten_thousand_operations(replica_set: ReplicaSet) -> None:
    num_operations = 0
    while num_operations < 10_000:
        num_operations += run_machine(replica_set, num_examples=20, num_steps=200)
