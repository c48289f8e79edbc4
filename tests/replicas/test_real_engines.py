"""Two replicas with the real engine: what the others show with a scripted one holds for it, too."""

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.redis_servers import RedisServer, running, wait_until
from tests.support.replicas import Replica, running_replicas
from tests.support.server import UNCOMPILED

pytestmark = [pytest.mark.full, pytest.mark.serial, pytest.mark.timeout(900)]

USER = (("x-user-id", "mover"),)
SETTINGS = ("engine.kind=vllm", UNCOMPILED, "limits.max_tokens=512", "cache.enabled=true", "cache.lookup_ms=1000")


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[Replica]]:
    redis = RedisServer()
    with running(redis), running_replicas([redis.address] * 2, *SETTINGS) as found:
        wait_until(lambda: all(each.metric("completion_redis_available") == 1.0 for each in found))
        yield found


def ask(replica: Replica, sequence: int, prefix: str, session: str, **fields: object) -> pb.End:
    """Ask and return the end, with the whole text in it."""
    request = pb.CompleteRequest(session_id=session, sequence=sequence, prefix=prefix, **fields)
    text = ""
    with grpc.insecure_channel(replica.address) as channel:
        for event in CompletionServiceStub(channel).Complete(request, timeout=60, metadata=USER):
            text += event.delta.text or event.end.text
    assert event.HasField("end")
    event.end.text = text
    return event.end


def test_a_newer_request_on_another_replica_ends_the_older_one(replicas: list[Replica]) -> None:
    """How long the model's answer is can't be known, so a user tries again until one has lived long enough."""
    reasons = []
    for number in range(1, 11):
        older: list[pb.End] = []
        prefix = (
            f"class Parser{number}:\n    def __init__(self, source, options):\n        self.source = source\n        "
        )
        asking = threading.Thread(
            target=lambda number=number, prefix=prefix, older=older: older.append(
                ask(replicas[0], number, prefix, "a", max_tokens=500, mode=pb.MODE_MULTI_LINE)
            )
        )
        asking.start()
        time.sleep(0.03)
        newer = ask(replicas[1], number, f"if number_{number} == ", "b")
        asking.join(60)
        assert newer.finish_reason in {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}
        reasons.append(older[0].finish_reason)
        if reasons[-1] == pb.FINISH_REASON_SUPERSEDED:
            break
    assert pb.FINISH_REASON_SUPERSEDED in reasons, reasons
    wait_until(lambda: replicas[0].metric("completion_running_requests") == 0.0)


def test_what_one_replica_has_computed_the_other_gets_from_redis(replicas: list[Replica]) -> None:
    prefix = "class MyError("
    computed = ask(replicas[0], 10, prefix, "a")
    assert computed.usage.cache_level == pb.CACHE_LEVEL_NONE
    again = ask(replicas[0], 11, prefix, "a")
    assert (again.usage.cache_level, again.text) == (pb.CACHE_LEVEL_LOCAL, computed.text)
    time.sleep(0.5)  # it is written after its end was sent
    moved = ask(replicas[1], 12, prefix, "a")
    assert (moved.usage.cache_level, moved.text) == (pb.CACHE_LEVEL_SHARED, computed.text)
    typed_along = ask(replicas[1], 13, prefix + computed.text[:2], "a")
    assert (typed_along.usage.cache_level, typed_along.text) == (pb.CACHE_LEVEL_LOCAL, computed.text[2:])
