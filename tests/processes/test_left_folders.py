"""What the processes of a server share is gone after any end of the server, at the latest when the next one starts."""

import asyncio
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.models import ROOT
from tests.support.server import eventually
from tests.support.server_process import COMMAND, flags, run_folders, serving

WITHIN_S = 240.0
"""For processes that start, on machines that are busy with other things."""
pytestmark = pytest.mark.timeout(3 * WITHIN_S)
SETTINGS = (
    "engine.kind=scripted", "engine.scripted_times=instant", "server.listen=127.0.0.1:0", "server.admin_listen=",
    "server.metrics_listen=", "server.http_listen=",
)  # fmt: skip
SEVERAL = ("server.processes=2",)


def starts_front_end(process_id: int) -> bool:
    """Return whether a server starts a front end, which it does when it has its folder."""
    with suppress(psutil.NoSuchProcess):
        return any("--multiprocessing-fork" in each.cmdline() for each in psutil.Process(process_id).children())
    return False


async def test_the_next_server_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    async with serving(tmp_path, *flags(*SETTINGS, *SEVERAL), within_s=WITHIN_S) as killed:
        (folder,) = run_folders(killed.process.pid)
        assert len(list(folder.iterdir())) == 3, "the lock, the group's folder and the engine's"
        killed.process.kill()
        await killed.ended()
    async with serving(tmp_path, *flags(*SETTINGS), within_s=WITHIN_S) as later:
        assert not folder.exists()
        (own,) = run_folders(later.process.pid)
        later.process.send_signal(signal.SIGTERM)
        assert await later.ended() == 0
    assert not own.exists()


async def test_a_server_that_is_stopped_before_it_serves_leaves_nothing() -> None:
    server = await asyncio.create_subprocess_exec(
        *COMMAND, "serve", *flags(*SETTINGS, *SEVERAL), stdout=subprocess.DEVNULL, cwd=ROOT
    )
    try:
        await eventually(lambda: starts_front_end(server.pid), WITHIN_S)
        (folder,) = run_folders(server.pid)
        assert any(folder.glob("*/*"))
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), WITHIN_S) == 0
        assert not folder.exists()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
