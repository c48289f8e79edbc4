"""The wheel in an empty environment with its plain dependencies: client library, commands and a scripted front end."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.models import ROOT

pytestmark = pytest.mark.full

HELP_S = 1.0
START_TIMEOUT_S = 120.0
PLAIN_CHECK = """
import sys
import completion_client
from importlib.util import find_spec
assert not {"torch", "numpy", "completion_server"} & set(sys.modules), "completion_client is not light"
assert find_spec("torch") is None, "the plain dependencies bring torch"
assert find_spec("vllm") is None, "the plain dependencies bring vLLM"
"""


def run(*command: str | Path, **options: object) -> str:
    """Run a command outside of the repository; return its standard output."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of commands of an environment that has the wheel alone."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--python", sys.executable, environment)
    run(uv, "pip", "install", "--compile-bytecode", "--python", environment / "bin" / "python", wheel)
    return environment / "bin"


@contextmanager
def serving(installed: Path, folder: Path) -> Iterator[str]:
    """Serve with a scripted engine and the wheel's own tokenizer; yield the address."""
    model = run(installed / "python", "-c", "import target_model; print(target_model.__path__[0])", cwd=folder).strip()
    settings = (
        "engine.kind=scripted", f"engine.model={model}/embedded", "server.listen=127.0.0.1:0",
        "server.admin_listen=", "server.metrics_listen=",
    )  # fmt: skip
    flags = [flag for setting in settings for flag in ("--set", setting)]
    command = [installed / "completion-server", "serve", "--json", *flags]
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


def test_the_plain_dependencies_have_no_torch_and_the_library_is_light(installed: Path, tmp_path: Path) -> None:
    run(installed / "python", "-c", PLAIN_CHECK, cwd=tmp_path)


def test_help_answers_within_a_second(installed: Path, tmp_path: Path) -> None:
    times_s = []
    for _ in range(3):
        start_s = time.perf_counter()
        assert "serve" in run(installed / "completion-server", "--help", cwd=tmp_path)
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) < HELP_S


def test_an_installed_server_completes(installed: Path, tmp_path: Path) -> None:
    with serving(installed, tmp_path) as address:
        command = (installed / "completion-server", "complete", "--server", address, "--json", "-")
        answer = json.loads(run(*command, input="for i in ra", cwd=tmp_path))
    assert answer["finish_reason"] in {"stop", "length"}
    assert answer["text"]
    assert answer["error"] is None
