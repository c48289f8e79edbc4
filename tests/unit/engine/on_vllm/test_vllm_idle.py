"""The patch of vLLM's queue between processes."""

import threading
import time

import pytest

from completion_server.engine.vllm.idle import MAX_SPIN_S, shorten_spin

TIMEOUT_S = 3  # without the patch the reader looks again after five seconds


def test_a_message_is_read_although_its_notification_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition

    for name in ("__init__", "wait"):
        monkeypatch.setattr(SpinCondition, name, getattr(SpinCondition, name))  # put back after the test
    shorten_spin()
    writer = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=writer.wait_until_ready)
    ready.start()
    reader.wait_until_ready()
    ready.join(TIMEOUT_S)
    monkeypatch.setattr(SpinCondition, "notify", lambda _self: None)
    time.sleep(2 * MAX_SPIN_S)  # the reader polls no more
    later = threading.Timer(0.1, writer.enqueue, ["late"])
    later.start()
    assert reader.dequeue(timeout=TIMEOUT_S) == "late"
    later.join()
