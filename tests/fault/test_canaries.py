"""Nothing that the server writes or shows holds what clients send: text, names, session ids or tokens.

A name of a user or tenant is in Redis only as a keyed hash, and in metrics only if the configuration names the tenant.
Usage records and the audit log name tenants.
"""

import asyncio
import contextlib
import re
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import psutil
import pytest

from tests.support.canaries import CANARY, Canaries, Sender
from tests.support.faulty_server import PARTS
from tests.support.models import TARGET
from tests.support.otlp import Receiver, grpc_receiver
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.support.server_process import flags, serving

SETTINGS = (
    "engine.kind=scripted", "engine.scripted_times=instant", f"engine.model={TARGET}", "server.listen=127.0.0.1:0",
    "server.admin_listen=", "server.metrics_listen=127.0.0.1:0", "server.http_listen=127.0.0.1:0", "log.level=debug",
    "log.format=json", "admission.user_requests_per_s=0", "admission.user_tokens_per_s=0", "admission.users_per_peer=0",
    "admission.trust_user_names=true", "shed.when=never", "shed.lag_ms=0",
    "limits.max_suffix_bytes=2000", "engine.max_model_len=4096", "prompt.next_edit_template=sweep",
    "traces.sample_ratio=1", "cache.look_up=always", 'metrics.tenants=["acme"]',
)  # fmt: skip
CONTROLS = ("control of this log", "control of standard error", "fail_task", "fail_callback", "Finalized.__del__")
"""In the log, besides the faults of all parts."""

NAMES = re.compile(rb'"(tenant|user)":"[^"]*",')


@asynccontextmanager
async def monitored(redis: RedisServer, written: Path) -> AsyncIterator[None]:
    """Write down every command that Redis gets, with its arguments."""
    with written.open("wb") as file:
        command = ("redis-cli", "-s", str(redis.socket_path), "MONITOR")
        process = await asyncio.create_subprocess_exec(*command, stdout=file, stdin=subprocess.DEVNULL)
    try:
        await eventually(lambda: b"OK" in written.read_bytes())
        yield
    finally:
        process.kill()
        await asyncio.wait_for(process.wait(), 30)


def titles() -> bytes:
    """Return the command lines and the names of all threads of the machine."""
    found = []
    for pattern in ("[0-9]*/cmdline", "[0-9]*/task/*/comm"):
        for path in Path("/proc").glob(pattern):
            with contextlib.suppress(OSError):  # it has ended
                found.append(path.read_bytes())
    return b"\n".join(found)


async def metrics_of(address: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as answer:
        return await answer.read()


def assert_free(where: str, written: bytes, *controls: str) -> None:
    """Check that there is no canary, and that the right thing was looked at."""
    for control in controls:
        assert control.encode() in written, f"{control!r} is missing in {where}"
    found = set(CANARY.findall(written))
    assert not found, f"{len(found)} canaries in {where}, as {sorted(found)[:3]}"


@pytest.mark.parametrize("num_canaries", [300, pytest.param(10_000, marks=pytest.mark.full)])
async def test_canaries_through_every_path_are_nowhere_afterwards(
    tmp_path: Path, make_redis: Callable[..., RedisServer], num_canaries: int
) -> None:
    canaries, redis = Canaries(), make_redis(config=["rdbcompression no"])
    command = (sys.executable, "-m", "tests.support.faulty_server", "--json", *flags(*SETTINGS))
    with grpc_receiver() as receiver:
        records = (f"records.usage_file={tmp_path}/usage", f"records.audit_file={tmp_path}/audit")
        shared = flags(f'redis.addresses=["{redis.address}"]', f"traces.endpoint={receiver.address}", *records)
        async with (
            monitored(redis, tmp_path / "monitor"),
            serving(tmp_path, command=(*command, *shared)) as server,
            grpc.aio.insecure_channel(server.ready["address"]) as channel,
        ):
            sender = Sender(canaries, server.ready, channel)
            while canaries.num_made < num_canaries:
                await sender.send_round()
            limits = psutil.Process(server.process.pid).rlimit(resource.RLIMIT_CORE)
            assert set(limits) <= {0, 1}, "no core dump may be written"
            assert_free("titles of processes", titles(), "tests.support.faulty_server")
            metrics = await metrics_of(server.ready["metrics_address"])
            assert_free("metrics", metrics, "completion_requests_total{", 'tenant="acme"', 'tenant="other"')
            assert b"completion_engine_restarts_total 0.0" not in metrics
            redis.cli("--rdb", str(tmp_path / "dump.rdb"))
            server.process.send_signal(signal.SIGTERM)
            assert server.process.stdout is not None
            rest = await asyncio.wait_for(server.process.stdout.read(), 60)
            assert await server.ended(60) == 0
    assert_free("standard output", server.line + rest, '"event": "ready"')
    assert_free("traces", bytes(receiver.raw), "completion.v1.CompletionService/Complete", "prefill")
    assert_free_of_files(tmp_path)
    assert_has_faults(server.log.read_bytes())
    assert_traced(receiver)


def assert_free_of_files(folder: Path) -> None:
    """Check every file that the server or Redis has written: logs, the dump, and what else there is."""
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in ("usage", "audit"):
        files[name] = NAMES.sub(b"", files[name])
    assert_free("the commands of Redis", files["monitor"], '"SET" "completion:cache:')
    assert_free("the dump of Redis", files["dump.rdb"], "completion:cache:")
    assert_free("usage records", files["usage"], '"outcome":"stop"', '"outcome":"error"')
    assert_free("the audit log", files["audit"], '"kind":"complete"', '"kind":"session_open"')
    for name, written in files.items():
        assert_free(name, written)


def assert_has_faults(log: bytes) -> None:
    """Check that every fault was there and was logged."""
    for control in (*CONTROLS, *(f", in fail_{part}" for part in PARTS)):
        assert control.encode() in log, f"{control!r} is not in the log"


def assert_traced(receiver: Receiver) -> None:
    """Check that requests over gRPC and HTTP were traced."""
    names = {span.name for span in receiver.roots()}
    assert len(names) > 1
    assert {"prefill", "decode"} <= {span.name for span in receiver.spans}
