"""What a server with several front ends decides before it starts or reloads them."""

import pytest

from completion_server.composition.checks import num_processes
from completion_server.composition.records import own_file
from completion_server.composition.reload import changed_for_good
from completion_server.config import Config, load_config
from completion_server.core.errors import ConfigError


def config(*settings: str) -> Config:
    return load_config(None, ("engine.kind=scripted", *settings), {})


@pytest.mark.parametrize(
    "setting",
    [
        "engine.max_num_seqs=65",
        "speculation.mode=fixed",
        "server.listen=127.0.0.1:1",
        "server.region=eu",
    ],
)
def test_what_the_parent_owns_needs_a_restart(setting: str) -> None:
    assert list(changed_for_good(config(), config(setting))) == [setting.partition("=")[0]]


@pytest.mark.parametrize(
    "setting", ["shed.budget_ms=300", "server.grace_s=3", "admission.user_burst=7", "cache.enabled=false"]
)
def test_what_front_ends_read_does_not(setting: str) -> None:
    assert config() != config(setting)
    assert list(changed_for_good(config(), config(setting))) == []


def test_a_number_of_processes() -> None:
    assert num_processes(config()) == 1
    assert num_processes(config("server.processes=3")) == 3
    assert 1 <= num_processes(config("server.processes=auto")) <= 8
    with pytest.raises(ConfigError, match=r"server.processes: must be at most 8, got 9"):
        config("server.processes=9")


def test_several_processes_share_no_unix_socket() -> None:
    with pytest.raises(ConfigError, match=r"server.listen: must be HOST:PORT if server.processes is 2"):
        num_processes(config("server.processes=2", "server.listen=unix:/tmp/x"))


def test_each_process_writes_its_own_file() -> None:
    assert own_file("/var/usage.jsonl", "1") == "/var/usage-1.jsonl"
    assert own_file("", "1") == ""
