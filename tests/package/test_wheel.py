"""The wheels, each in an empty environment: client library, language server, commands and a scripted front end."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.models import ROOT

pytestmark = pytest.mark.full

HELP_S = 1.0
START_TIMEOUT_S = 120.0
LIGHT = "import completion_client, sys; assert not {'torch', 'numpy', 'completion_server'} & set(sys.modules)"
CLIENT_PACKAGES = {"completion-client", "googleapis-common-protos", "grpcio", "protobuf", "typing-extensions"}
"""What `pip install completion-client` brings: grpcio needs typing-extensions."""
LSP_PACKAGES = CLIENT_PACKAGES | {"attrs", "cattrs", "completion-lsp", "lsprotocol", "pygls"}
"""What `pip install completion-client completion-lsp` brings."""


def run(*command: str | Path, **options: object) -> str:
    """Run a command outside of the repository; return its standard output."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return the wheels of the client, the language server and the server."""
    folder = tmp_path_factory.mktemp("wheels")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT / "completion_client", ROOT / "completion_lsp", ROOT)
    client, language_server, server = sorted(folder.glob("*.whl"))
    return client, language_server, server


def install(folder: Path, *wheels: Path) -> Path:
    """Return the folder of commands of a new environment that has the wheels and what they need."""
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--python", sys.executable, folder)
    run(uv, "pip", "install", "--compile-bytecode", "--python", folder / "bin" / "python", *wheels)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheels: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of commands of an environment that has the server's plain dependencies."""
    client, _, server = wheels
    return install(tmp_path_factory.mktemp("environment") / "venv", client, server)


def packages(environment: Path) -> set[str]:
    code = "from importlib.metadata import distributions; print(*(d.metadata['Name'] for d in distributions()))"
    return {name.lower().replace("_", "-") for name in run(environment / "python", "-c", code).split()}


def test_the_client_brings_no_more_than_grpc_and_the_contract(wheels: tuple[Path, Path, Path], tmp_path: Path) -> None:
    client, _, server = (zipfile.ZipFile(wheel).namelist() for wheel in wheels)
    assert {"completion/v1/completion.proto", "completion_client/__init__.py"} <= set(client)
    assert "completion_server/api/http/playground/static/main.js" in server
    assert not [name for name in client if "__pycache__" in name]
    assert not [name for name in client + server if "third_party" in name or name.startswith("google/")]
    assert not [name for name in server if name.startswith(("completion/", "completion_client/", "completion_lsp/"))]
    environment = install(tmp_path / "venv", wheels[0])
    assert packages(environment) == CLIENT_PACKAGES
    run(environment / "python", "-c", LIGHT, cwd=tmp_path)


def test_the_language_server_brings_pygls_alone(wheels: tuple[Path, Path, Path], tmp_path: Path) -> None:
    client, language_server, _ = wheels
    names = zipfile.ZipFile(language_server).namelist()
    assert "completion_lsp/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("completion/", "completion_c"))]
    environment = install(tmp_path / "venv", client, language_server)
    assert packages(environment) == LSP_PACKAGES
    run(environment / "python", "-c", LIGHT, cwd=tmp_path)
    assert "--check" in run(environment / "completion-lsp", "--help", cwd=tmp_path)
    run(environment / "python", "-c", "import completion_lsp.server, completion_lsp.check", cwd=tmp_path)


def test_the_plain_dependencies_of_the_server_have_no_torch(installed: Path, tmp_path: Path) -> None:
    assert not {"torch", "transformers", "vllm"} & packages(installed)
    run(installed / "python", "-c", LIGHT, cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "extra"), [("loadtest", "loadtest"), ("draft-model", "train"), ("target-model", "train")]
)
def test_a_command_without_its_packages_says_what_to_install(
    installed: Path, tmp_path: Path, command: str, extra: str
) -> None:
    done = subprocess.run([installed / command, "--help"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf"{command} needs the package \w+: install the extra {extra}\n", done.stderr)


@contextmanager
def serving(installed: Path, folder: Path) -> Iterator[str]:
    """Serve with README's command for this environment, on another port; yield the address."""
    (readme,) = re.findall(r"^completion-server (serve .*?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    settings = ("server.listen=127.0.0.1:0", "server.admin_listen=", "server.metrics_listen=")
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command = [installed / "completion-server", *shlex.split(readme), "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as server:
        try:
            assert server.stdout is not None
            readable, _, _ = select.select([server.stdout], [], [], START_TIMEOUT_S)
            assert readable, "the server did not start"
            yield json.loads(server.stdout.readline())["address"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(START_TIMEOUT_S) == 0
        finally:
            server.kill()


def test_help_answers_within_a_second(installed: Path, tmp_path: Path) -> None:
    """Processor time, which is the whole time on a machine that does nothing else."""
    times_s = []
    for _ in range(3):
        before = os.times()
        assert "serve" in run(installed / "completion-server", "--help", cwd=tmp_path)
        after = os.times()
        spent_s = (after.children_user - before.children_user) + (after.children_system - before.children_system)
        times_s.append(spent_s)
    assert 0 < min(times_s) < HELP_S


def test_an_installed_server_completes(installed: Path, tmp_path: Path) -> None:
    with serving(installed, tmp_path) as address:
        command = (installed / "completion-server", "complete", "--server", address, "--json", "-")
        answer = json.loads(run(*command, input="for i in ra", cwd=tmp_path))
    assert answer["finish_reason"] in {"stop", "length"}
    assert answer["text"]
    assert answer["error"] is None
