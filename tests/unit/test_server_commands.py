"""`serve` and `check-config` judge a configuration alike."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from completion_server.server_commands import check_config, serve
from tests.support.certificates import MakeIdentity
from tests.support.models import TARGET
from tests.support.server import FREE_PORTS

BASE = ("--set", "engine.kind=scripted", "--set", f"engine.model={TARGET}")
START_TIMEOUT_S, STOP_TIMEOUT_S = 200.0, 60.0
"""For a server that hangs. On a busy machine a start takes half a minute of imports."""


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
        ("server.max_session_age_s=5000", "server.max_session_age_s: must be less than max_connection_age_grace_s"),
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
    overrides = f"server.tls.certificate={bad}", f"server.tls.key={bad}", *FREE_PORTS
    found = [judge(command, *overrides) for command in ("serve", "check-config")]
    assert [each.returncode for each in found] == [2, 2]
    assert all("server.tls: its certificate, key or client_ca can't be used" in each.stderr for each in found)
    assert "Traceback" not in found[0].stderr + found[1].stderr


def test_a_prompt_that_no_template_can_build_is_refused_without_an_engine() -> None:
    refused = check("prompt.template=starcoder2")
    assert refused.exit_code == 2
    assert check().exit_code == 0


async def run_until_ready(cache: Path, *overrides: str) -> tuple[str, str]:
    """Serve until the ready line, stop, and return it and the log."""
    sets = [part for override in (*FREE_PORTS, *overrides) for part in ("--set", override)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "completion_server", "serve", *BASE, *sets,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        if ready:
            process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), STOP_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, log.decode()
    return ready.decode(), log.decode()


async def test_a_start_says_what_it_loads_and_how_long_that_took_last_time(tmp_path: Path) -> None:
    ready, log = await run_until_ready(tmp_path)
    assert "starting the scripted engine on target_model/embedded; the first start with these settings" in log
    assert " slots=8 of 32 (begins low; more are added only while nearly all are in use); try: printf " in ready
    log = (await run_until_ready(tmp_path))[1]
    assert re.search(r"the last start took \d+ s", log)
    assert re.search(r"loading the models; the last time took \d+ s", log)


@pytest.mark.full
async def test_the_ready_line_of_a_tls_server_has_a_command_that_reaches_it(
    tmp_path: Path, make_identity: MakeIdentity
) -> None:
    server = make_identity("server")
    tls = f"server.tls.certificate={server.certificate}", f"server.tls.key={server.key}"
    plain_tls = (await run_until_ready(tmp_path, *tls))[0]
    assert re.search(rf"complete --server 127\.0\.0\.1:\d+ --tls-ca {server.certificate} -\n", plain_tls)
    mutual = (await run_until_ready(tmp_path, *tls, f"server.tls.client_ca={server.certificate}"))[0]
    assert f"--tls-ca {server.certificate} --tls-cert CLIENT_CERTIFICATE --tls-key ITS_KEY -" in mutual


def test_fewer_tokens_alone_are_accepted() -> None:
    found = check("limits.max_tokens=64")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.startswith("ok: ")
