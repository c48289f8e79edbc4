"""Requests and feedback of a few users, such that every metric of the dashboards has a value."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub

TENANTS = ("acme", "globex")
SETTINGS = (
    "cache.enabled=true",
    'metrics.tenants=["acme", "globex"]',
    "admission.tenant_requests_per_s=0",
    "admission.user_requests_per_s=1",  # who asks more often is shed
    "admission.user_burst=6",
)
_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
_SURVIVED_AFTER_S = 30


@dataclass
class DashboardLoad:
    """Asks all servers in rounds, until stopped."""

    addresses: Sequence[str]
    is_stopped: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        """Ask until stopped; keep the first failure."""
        channels = [grpc.insecure_channel(address) for address in self.addresses]
        stubs = [CompletionServiceStub(channel) for channel in channels]
        try:
            while not self.is_stopped.wait(_PAUSE_S):
                for place in range(len(stubs)):
                    self._round(stubs[place:] + stubs[:place])
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits for this one
            self.failure = error
        finally:
            for channel in channels:
                channel.close()

    def _round(self, stubs: Sequence[CompletionServiceStub]) -> None:
        """One user on the first server, who moves to the others at the end."""
        number = next(self._numbers)
        stub, user = stubs[0], f"user-{number}"
        asked = pb.CompleteRequest(session_id=user, sequence=1, prefix=f"value_{number} = ", max_tokens=6)
        answer = self._ask(stub, asked)
        self._report(stub, asked, answer)
        asked.sequence = 2
        self._ask(stub, asked)  # from the memory of the server
        asked.sequence = 3
        for other in stubs[1:]:
            self._ask(other, asked)  # from Redis
        self._give_up(stub, f"gone-{number}")
        self._supersede(stub, f"fast-{number}")
        often = pb.CompleteRequest(session_id="often", sequence=number, prefix=f"x{number} = ", max_tokens=2)
        self._ask(stub, often, 4)
        self._refused(stub, number)

    def _ask(self, stub: CompletionServiceStub, request: pb.CompleteRequest, times: int = 1) -> int:
        """Return the number of characters of the answer."""
        for _ in range(times):
            parts = list(stub.Complete(request, timeout=_TIMEOUT_S, metadata=_metadata(request)))
            request.sequence += times > 1
        return sum(len(part.delta.text) + len(part.end.text) for part in parts)

    def _report(self, stub: CompletionServiceStub, asked: pb.CompleteRequest, num_characters: int) -> None:
        assert num_characters, "the scripted engine always writes something"
        for fields in (
            {"kind": pb.FEEDBACK_KIND_SHOWN},
            {"kind": pb.FEEDBACK_KIND_ACCEPTED, "accepted_characters": num_characters},
            {"kind": pb.FEEDBACK_KIND_SURVIVED, "survived_after_s": _SURVIVED_AFTER_S, "survived_share": 1.0},
        ):
            report = pb.ReportFeedbackRequest(session_id=asked.session_id, sequence=asked.sequence, **fields)
            stub.ReportFeedback(report, timeout=_TIMEOUT_S, metadata=_metadata(asked))

    def _give_up(self, stub: CompletionServiceStub, user: str) -> None:
        """Cancel a long answer in its middle."""
        asked = _long(user)
        call = stub.Complete(asked, timeout=_TIMEOUT_S, metadata=_metadata(asked))
        next(call)
        call.cancel()

    def _supersede(self, stub: CompletionServiceStub, user: str) -> None:
        """Ask anew, with another text, while an answer comes."""
        asked = _long(user)
        older = stub.Complete(asked, timeout=_TIMEOUT_S, metadata=_metadata(asked))
        next(older)
        self._ask(stub, pb.CompleteRequest(session_id=user, sequence=2, prefix=f"other_{user} = ", max_tokens=2))
        for _ in older:
            pass

    def _refused(self, stub: CompletionServiceStub, number: int) -> None:
        asked = pb.CompleteRequest(session_id="wrong", sequence=number, prefix="x", max_tokens=-1)
        with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
            list(stub.Complete(asked, timeout=_TIMEOUT_S, metadata=_metadata(asked)))


def _long(user: str) -> pb.CompleteRequest:
    fields = {"prefix": f"{user} = ", "max_tokens": 200, "mode": pb.MODE_MULTI_LINE}
    return pb.CompleteRequest(session_id=user, sequence=1, **fields)


def _metadata(request: pb.CompleteRequest) -> tuple[tuple[str, str], ...]:
    """Return the name of the user and a tenant, by turns one of those that are configured and another one."""
    tenants = (*TENANTS, "initech")
    return ("x-user-id", request.session_id), ("x-tenant-id", tenants[sum(request.session_id.encode()) % len(tenants)])


@contextmanager
def dashboard_load(addresses: Sequence[str]) -> Iterator[DashboardLoad]:
    """Run the load in a thread; fail if one of its requests failed otherwise than it should."""
    load = DashboardLoad(addresses)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.is_stopped.set()
        thread.join(60)
    if load.failure is not None:
        raise load.failure
