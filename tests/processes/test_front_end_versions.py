"""A server whose installed version changes while it runs: its front ends start from the new one, and status says so."""

import os
import shlex
import shutil
from pathlib import Path

import grpc
import pytest

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_server import __version__
from tests.support.models import ROOT
from tests.support.server_process import COMMAND, flags, serving

WITHIN_S = 240.0
NEXT = f"{__version__}.post1"
SETTINGS = (
    "engine.kind=scripted", "engine.scripted_times=instant", "server.processes=2", "server.listen=127.0.0.1:0",
    "server.admin_listen=127.0.0.1:0", "server.metrics_listen=", "server.http_listen=",
)  # fmt: skip


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with a copy of the server, from which a process in it imports it."""
    for name in os.listdir(ROOT):
        if name != "completion_server":
            (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "completion_server", tmp_path / "completion_server")
    return tmp_path


@pytest.mark.full
async def test_status_tells_the_version_of_each_front_end(
    installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = ("sh", "-c", f'cd {shlex.quote(str(installed))} && PYTHONPATH=.:proto exec "$@"', "sh", *COMMAND, "serve")
    arguments = ("--json", *flags(*SETTINGS))
    async with (
        serving(tmp_path_factory.mktemp("log"), *arguments, command=there, within_s=WITHIN_S) as served,
        grpc.aio.insecure_channel(served.ready["admin_address"]) as channel,
    ):
        admin = AdminServiceStub(channel)

        async def versions() -> list[str]:
            status = await admin.GetStatus(admin_pb2.GetStatusRequest())
            assert status.version == __version__
            return [each.version for each in status.front_ends]

        assert await versions() == 2 * [__version__]
        source = installed / "completion_server" / "__init__.py"
        source.write_text(source.read_text().replace(__version__, NEXT))
        await admin.Reload(admin_pb2.ReloadRequest(code=True), timeout=WITHIN_S)
        assert await versions() == 2 * [NEXT]
