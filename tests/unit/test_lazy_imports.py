"""The modules that the client library and `completion-server --help` load, each in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

from completion_server import __main__ as entry_point
from completion_server.cli import LazyCommand, main
from completion_server.engine.vllm.process import PARENT_ENV

HEAVY = {"torch", "vllm", "numpy", "transformers", "tokenizers", "pydantic"}


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a Python process imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_the_client_library_loads_neither_the_server_nor_heavy_packages() -> None:
    loaded = loaded_by("-c", "import completion_client")
    assert "completion.v1.completion_pb2" in loaded
    assert not loaded & (HEAVY | {"completion_server", "click", "rich"})


def test_help_loads_no_server() -> None:
    loaded = loaded_by("-m", "completion_server", "--help")
    assert "completion_server.cli" in loaded
    assert not loaded & (HEAVY | {"grpc", "completion_server.composition.app", "completion_server.config"})


@pytest.mark.parametrize("name", sorted(name for name, command in main.commands.items() if not command.hidden))
def test_every_command_of_the_list_exists(name: str) -> None:
    lazy = main.commands[name]
    assert isinstance(lazy, LazyCommand)
    assert lazy.load().name == name


def test_one_variable_marks_the_engines_processes() -> None:
    assert entry_point.__file__ is not None
    assert f'"{PARENT_ENV}" in os.environ' in Path(entry_point.__file__).read_text(encoding="utf-8")
