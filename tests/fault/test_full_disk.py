"""A full disk: the server serves on, counts what it can't write and says so when it can write again."""

import asyncio
import io
import json
import logging
import resource
import urllib.request
from pathlib import Path

import grpc
import psutil
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.ops.logs import CountingHandler
from tests.support.models import TARGET
from tests.support.server import ask, request
from tests.support.server_process import COMMAND, flags, serving

SETTINGS = (
    "engine.kind=scripted", f"engine.model={TARGET}", "server.listen=127.0.0.1:0", "server.admin_listen=",
    "server.metrics_listen=127.0.0.1:0", "log.level=debug",
)  # fmt: skip
FULL_AT_BYTES = 8 * 1024
"""How long a file may be until there is room again."""
NUM_FULL, NUM_AFTER = 150, 10
UNLIMITED = ("admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0")


async def ask_all(stub: CompletionServiceStub, first: int, num: int) -> None:
    for sequence in range(first, first + num):
        answer = await ask(stub, request(sequence=sequence), metadata=(("x-user-id", "ann"),))
        assert answer.code is grpc.StatusCode.OK


@pytest.mark.full
async def test_a_server_whose_records_have_no_room_serves_and_counts_them(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"{kind}.jsonl" for kind in ("usage", "audit")}
    files = [f"records.{kind}_file={path}" for kind, path in paths.items()]
    no_room = ("sh", "-c", f'ulimit -Sf {FULL_AT_BYTES // 512} && exec "$@"', "sh", *COMMAND, "serve")
    async with serving(tmp_path, "--json", *flags(*SETTINGS, *UNLIMITED, *files), command=no_room) as server:
        process = psutil.Process(server.process.pid)
        process.rlimit(resource.RLIMIT_FSIZE, (FULL_AT_BYTES, resource.RLIM_INFINITY))
        async with grpc.aio.insecure_channel(server.ready["address"]) as channel:
            stub = CompletionServiceStub(channel)
            await ask_all(stub, 1, NUM_FULL)
            assert paths["usage"].stat().st_size <= FULL_AT_BYTES
            process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await ask_all(stub, 1 + NUM_FULL, NUM_AFTER)
        values = await asyncio.to_thread(samples, server.ready["metrics_address"])
        server.process.terminate()
        assert await server.ended() == 0
    for kind, path in paths.items():
        lost = values[f'completion_records_lost_total{{kind="{kind}"}}']
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lost > 0
        # The first record that failed is counted, and written when there is room again.
        assert NUM_FULL + NUM_AFTER <= lost + len(lines) <= NUM_FULL + NUM_AFTER + 1
    assert "can be written again" in server.log.read_text()


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
