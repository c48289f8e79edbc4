"""`serve` and `check-config` judge a configuration alike."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from completion_server.server_commands import check_config, serve
from tests.support.models import TARGET

BASE = ("--set", "engine.kind=scripted", "--set", f"engine.model={TARGET}")


def judge(command: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, as it configures logs and signals of its process."""
    sets = [part for override in overrides for part in ("--set", override)]
    return subprocess.run(
        [sys.executable, "-m", "completion_server", command, *BASE, *sets],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def check(*overrides: str) -> Result:
    return CliRunner().invoke(check_config, [*BASE, *(part for each in overrides for part in ("--set", each))])


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("server.listen=127.0.0.1:99999", "server.listen: the port must be from 0 to 65535, got '127.0.0.1:99999'"),
        ("server.listen=127.0.0.1", "server.listen: must be HOST:PORT, got '127.0.0.1' (or unix:PATH)"),
        ("server.admin_listen=0.0.0.0:50052", "server.admin_listen: 0.0.0.0:50052 is not loopback; that needs "),
        ("engine.max_model_len=150", "limits.max_tokens: 128 leaves 18 of the model's 150 tokens for a prompt"),
    ],
)
def test_both_refuse_the_same_settings(override: str, fault: str) -> None:
    found = [CliRunner().invoke(command, [*BASE, "--set", override]) for command in (serve, check_config)]
    assert [each.exit_code for each in found] == [2, 2]
    assert all(fault in each.stderr for each in found)
    assert found[0].stderr == found[1].stderr


def test_both_refuse_a_certificate_that_is_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    overrides = f"server.tls.certificate={bad}", f"server.tls.key={bad}", "server.listen=127.0.0.1:0"
    found = [judge(command, *overrides) for command in ("serve", "check-config")]
    assert [each.returncode for each in found] == [2, 2]
    assert all("server.tls: its certificate, key or client_ca can't be used" in each.stderr for each in found)
    assert "Traceback" not in found[0].stderr + found[1].stderr


def test_a_prompt_that_no_template_can_build_is_refused_without_an_engine() -> None:
    refused = check("prompt.template=starcoder2")
    assert refused.exit_code == 2
    assert check().exit_code == 0


def test_fewer_tokens_alone_are_accepted() -> None:
    found = check("limits.max_tokens=64")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.startswith("ok: ")
