"""Requests and feedback of a few users, such that every metric of the dashboards has a value."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub

TENANTS = ("acme", "globex")
SETTINGS = (
    "cache.enabled=true",
    'metrics.tenants=["acme", "globex"]',
    "admission.tenant_requests_per_s=0",
    "admission.user_requests_per_s=3",  # who asks more often is shed; six at once are allowed
)
_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
_LONG: dict[str, Any] = {"max_tokens": 200, "mode": pb.MODE_MULTI_LINE}


@contextmanager
def dashboard_load(addresses: Sequence[str], more: Callable[[], object]) -> Iterator[None]:
    """Ask all servers in rounds, in a thread, and `more` in each; fail if a request failed otherwise than it should."""
    is_stopped = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        load = threads.submit(_run, addresses, more, is_stopped)
        try:
            yield
        finally:
            is_stopped.set()
        load.result(60)


def _run(addresses: Sequence[str], more: Callable[[], object], is_stopped: threading.Event) -> None:
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(address)) for address in addresses]
        stubs = [CompletionServiceStub(channel) for channel in channels]
        for number in itertools.count(1):
            if is_stopped.wait(_PAUSE_S):
                return
            more()
            for place in range(len(stubs)):
                _ask_round([*stubs[place:], *stubs[:place]], len(stubs) * number + place)


def _ask_round(stubs: Sequence[CompletionServiceStub], number: int) -> None:
    """One user on the first server, who moves to the others at the end, and others with habits of their own."""
    stub, user, prefix = stubs[0], f"user-{number}", f"value_{number} = "
    accepted = {"kind": pb.FEEDBACK_KIND_ACCEPTED, "accepted_characters": _read(_ask(stub, user, 1, prefix))}
    survived = {"kind": pb.FEEDBACK_KIND_SURVIVED, "survived_after_s": 30, "survived_share": 1.0}
    for fields in ({"kind": pb.FEEDBACK_KIND_SHOWN}, accepted, survived):
        report = pb.ReportFeedbackRequest(session_id=user, sequence=1, **fields)
        stub.ReportFeedback(report, timeout=_TIMEOUT_S, metadata=_metadata(user))
    _read(_ask(stub, user, 2, prefix))  # from the memory of the server
    for other in stubs[1:]:
        _read(_ask(other, user, 3, prefix))  # from Redis
    given_up = _ask(stub, f"gone-{number}", 1, f"gone_{number} = ", **_LONG)
    next(given_up)
    given_up.cancel()
    superseded = _ask(stub, f"fast-{number}", 1, f"fast_{number} = ", **_LONG)
    next(superseded)
    _read(_ask(stub, f"fast-{number}", 2, f"other_{number} = "))
    _read(superseded)
    for place in range(4):
        _read(_ask(stub, "often", number + place, f"x{number} = "))
    with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
        _read(_ask(stub, "wrong", number, "x", max_tokens=-1))


def _ask(stub: CompletionServiceStub, user: str, sequence: int, prefix: str, **fields: Any) -> Any:
    """Return the call of a request."""
    fields = {"session_id": user, "sequence": sequence, "prefix": prefix, "max_tokens": 6} | fields
    return stub.Complete(pb.CompleteRequest(**fields), timeout=_TIMEOUT_S, metadata=_metadata(user))


def _read(call: Any) -> int:
    """Return the number of characters of an answer."""
    return sum(len(part.delta.text) + len(part.end.text) for part in call)


def _metadata(user: str) -> tuple[tuple[str, str], ...]:
    """Return the name of the user and a tenant, by turns one of those that are configured and another one."""
    tenants = (*TENANTS, "initech")
    return ("x-user-id", user), ("x-tenant-id", tenants[sum(user.encode()) % len(tenants)])
