"""The commands: errors before any load is sent, exit codes, and the documents of several machines."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from completion_server.engine.scripted.engine import ScriptedEngine
from loadtest.__main__ import main
from loadtest.commands.run import make_document
from loadtest.driving import worker_pool
from loadtest.driving.run import Machine, run_scenario
from loadtest.report.document import parse_gates, read_document
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from tests.loadtest.golden import GoldenServer, golden_server
from tests.support.certificates import MakeIdentity
from tests.support.guarded_replica import run_guarded
from tests.support.server import make_config, run_server

SHORT = ("steady", "--duration", "0.5", "--sessions", "20", "--workers", "1")
WAIT_S = 60.0


@pytest.fixture(scope="module")
def golden() -> Iterator[GoldenServer]:
    with golden_server(least_ms=5.0, most_ms=20.0) as server:
        yield server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stedy",), "did you mean 'steady'"),
        (("steady", "--set", "typing.debounce=3"), "debounce_ms"),
        (("steady", "--gate", "pause_p95<200"), "there is no figure 'pause_p95'"),
        (("steady", "--target", "grcp://a:1"), "unknown scheme 'grcp'"),
        (("steady",), "nothing answers at 127.0.0.1:1"),
        (("steady", "--target", "x=grpc://127.0.0.1:1", "--target", "x=grpc://127.0.0.1:1"), "two targets .* 'x'"),
        (("steady", "--worker-index", "2", "--num-workers", "2"), "must be below --num-workers = 2, got 2"),
        (("steady", "--num-workers", "2"), "say when with --start-at"),
        (("steady", "--start-at", "1", "--interleave"), "there can be one --target only"),
        (("steady", "--out", "/nowhere/run.json"), "there is no folder /nowhere"),
    ],
)
def test_bad_input_is_refused_before_any_load_is_sent(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments, "--target", "grpc://127.0.0.1:1")
    assert result.exit_code == 2
    assert re.search(said, result.output), result.output


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_server_with_mutual_tls_is_asked_with_a_users_certificate_and_else_says_what_is_missing(
    is_known: bool, make_identity: MakeIdentity
) -> None:
    ours, users = make_identity("server"), make_identity("user")
    tls = f"server.tls.certificate={ours.certificate}", f"server.tls.key={ours.key}"
    config = make_config(*tls, f"server.tls.client_ca={users.certificate}")
    files = ("--tls-cert", str(users.certificate), "--tls-key", str(users.key)) if is_known else ()
    async with run_server(config, ScriptedEngine) as server:
        options = ("--target", f"grpc://{server.ready.address}", "--tls-ca", str(ours.certificate), *files, "--json")
        result = await asyncio.to_thread(run, *SHORT, *options)
    if is_known:
        assert result.exit_code in {0, 3}, result.output
        assert json.loads(result.stdout)["targets"][0]["figures"]["error_rate"] == 0
    else:
        assert (result.exit_code, "use --tls-cert and --tls-key" in result.stderr) == (2, True), result.output


async def test_users_present_the_tokens_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    await asyncio.to_thread(file.write_text, "good\nother\n")
    async with run_guarded() as (server, address):
        server.tokens.add("other")
        options = ("--target", f"grpc://{address}", "--tokens", str(file), "--json")
        result = await asyncio.to_thread(run, *SHORT, *options)
    assert result.exit_code in {0, 3}, result.output
    assert json.loads(result.stdout)["targets"][0]["figures"]["error_rate"] == 0
    assert set(server.presented) == {"good", "other"}


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("llama+http://127.0.0.1:1", "--tls-ca CA", "are for completion servers over gRPC only"),
        ("grpc://127.0.0.1:1", "--tls-cert CA", "certificate and key must be given together"),
        ("grpc://127.0.0.1:1", "--token-command false", "the command false: it ended with status 1"),
        ("grpc://127.0.0.1:1", "--token-command true --tokens CA", "give one of them"),
        ("grpc://127.0.0.1:1", "--tokens /dev/null", "/dev/null has no tokens, one a line"),
        ("llama+http://example.com:1", "--token-command 'echo t'", "is not sent to example.com:1 without TLS"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused(
    target: str, options: str, said: str, make_identity: MakeIdentity
) -> None:
    words = shlex.split(options.replace("CA", str(make_identity("server").certificate)))
    result = run(*SHORT, "--target", target, *words)
    assert (result.exit_code, said in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("options", "query", "said"),
    [
        (SHORT, "?metrics=127.0.0.1:1", "http://127.0.0.1:1/metrics can't be read"),
        ((*SHORT, "--start-at", "1000"), "", "s after the time at which all machines start"),
        (("reconnect", "--interleave"), "", "scenario reconnect has events, so it can't be cut into blocks"),
    ],
    ids=["unreadable metrics", "ready too late", "events in blocks"],
)
def test_a_run_that_can_not_start_says_why(
    golden: GoldenServer, options: tuple[str, ...], query: str, said: str
) -> None:
    result = run(*options, "--target", f"grpc://{golden.host}{query}")
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_a_low_limit_of_open_files_names_the_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[tuple[int, int]] = []
    monkeypatch.setattr(worker_pool.resource, "getrlimit", lambda _which: (1024, 4096))
    monkeypatch.setattr(worker_pool.resource, "setrlimit", lambda _which, limits: allowed.append(limits))
    worker_pool.allow_files(1000, 1)
    assert not allowed
    worker_pool.allow_files(3000, 1)
    assert allowed == [(3000, 4096)], "the soft limit is raised"
    with pytest.raises(worker_pool.CheckError, match="`ulimit -n 5000`"):
        worker_pool.allow_files(5000, 1)


def test_a_gate_decides_the_exit_code_and_the_document_and_its_page_are_written(
    golden: GoldenServer, tmp_path: Path
) -> None:
    out, html = tmp_path / "run.json", tmp_path / "run.html"
    target = f"ours=grpc+complete://{golden.host}"
    result = run(*SHORT, "--target", target, "--gate", "error_rate>0.5", "--out", str(out), "--html", str(html))
    document = read_document(out)
    assert result.exit_code == (1 if document.is_valid else 3), result.output
    assert document.targets[0].stats.total.counters["intended"] > 0
    assert html.read_text().startswith("<!doctype html>")


def test_the_shares_of_several_machines_are_one_run(golden: GoldenServer, tmp_path: Path) -> None:
    scenario = Scenario.load("steady").scaled(sessions=20, duration_s=0.5)
    specs = [parse_target(f"ours=grpc://{golden.host}")]
    paths = [tmp_path / f"part-{number}.json" for number in range(2)]
    for number, path in enumerate(paths):
        found = run_scenario(scenario, specs, workers=1, machine=Machine(number, 2))
        document = make_document(scenario, specs, parse_gates(["error_rate<0.5"]), found)
        assert any("missing" in each for each in document.targets[0].invalid_because)
        document.write(path)
    merged = CliRunner().invoke(main, ["merge", *map(str, paths), "--json"])
    whole: dict[str, Any] = json.loads(merged.output)
    (target,) = whole["targets"]
    assert target["stats"]["workers"] == [0, 1]
    assert target["figures"]["sessions"] == 20
    assert whole["schedule_digest"] == make_trace(scenario).digest()
    assert not any("missing" in each for each in target["invalid_because"])
    twice = CliRunner().invoke(main, ["merge", str(paths[0]), str(paths[0])])
    assert twice.exit_code == 2
    assert "worker 0 is included twice" in twice.output


def test_ctrl_c_ends_with_a_valid_report(golden: GoldenServer, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    command = (sys.executable, "-m", "loadtest", "run", *SHORT, "--duration", "300", "--out", str(out))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before = len(golden.books().received)
    targets = [f"--target={name}=grpc://{golden.host}" for name in ("ours", "never-in-turn")]
    with subprocess.Popen([*command, *targets], env=env, start_new_session=True) as child:
        deadline = time.monotonic() + WAIT_S
        while len(golden.books().received) == before:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: all of them get it
        assert child.wait(WAIT_S) == 130
    document = read_document(out)
    assert document.interrupted
    (target,) = document.targets
    assert 0 < target.stats.duration_s < 300
    assert target.stats.total.counters["intended"] > 0
    assert target.stats.workers == {0}
