"""A full disk: the server serves on, counts what it can't write and says so when it can write again."""

import asyncio
import io
import logging
import urllib.request
from pathlib import Path

import grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.telemetry.logs import CountingHandler
from tests.support.models import TARGET
from tests.support.server import ask, request
from tests.support.server_process import COMMAND, flags, serving

SETTINGS = (
    "engine.kind=scripted", f"engine.model={TARGET}", "server.listen=127.0.0.1:0", "server.admin_listen=",
    "server.metrics_listen=127.0.0.1:0", "log.level=debug",
)  # fmt: skip
NUM_REQUESTS = 20


async def test_a_server_whose_logs_have_no_room_serves_and_counts_them(tmp_path: Path) -> None:
    full = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh", *COMMAND, "serve")
    async with serving(tmp_path, "--json", *flags(*SETTINGS), command=full) as process:
        async with grpc.aio.insecure_channel(process.ready["address"]) as channel:
            stub = CompletionServiceStub(channel)
            for sequence in range(1, NUM_REQUESTS + 1):
                assert (await ask(stub, request(sequence=sequence))).code is grpc.StatusCode.OK
        values = await asyncio.to_thread(samples, process.ready["metrics_address"])
        assert values["completion_lost_log_records_total"] > 0
        ended = [value for name, value in values.items() if name.startswith("completion_requests_total{")]
        assert sum(ended) == NUM_REQUESTS


def samples(address: str) -> dict[str, float]:
    """Return the samples of a metrics page."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        lines = [line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in lines}


class _Disk(io.StringIO):
    """A stream that takes nothing while it is full."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError("no space left on device")
        return super().write(text)


def test_the_first_record_that_can_be_written_again_is_followed_by_the_number_of_lost_ones() -> None:
    disk = _Disk()
    handler, server_logs = CountingHandler(disk), logging.getLogger("completion_server")
    level = server_logs.level
    server_logs.addHandler(handler)
    server_logs.setLevel(logging.INFO)
    try:
        server_logs.info("one")
        disk.is_full = True
        for _ in range(3):
            server_logs.info("lost")
        disk.is_full = False
        server_logs.info("two")
        server_logs.info("three")
    finally:
        server_logs.removeHandler(handler)
        server_logs.setLevel(level)
    assert disk.getvalue().splitlines() == ["one", "two", "3 log records could not be written", "three"]
    assert handler.num_lost == 3
