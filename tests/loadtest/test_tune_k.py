"""The tuner on a real server whose engine is scripted, so that the best table is known; and its errors."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from completion.v1 import admin_pb2 as pb
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.__main__ import main
from loadtest.targets import TargetError
from loadtest.targets.speculation import Operator
from loadtest.traffic.scenario import Scenario
from loadtest.tuning.replay import Replay
from loadtest.tuning.tuner import Tuner, TuningError, TuningSettings
from tests.support.certificates import MakeIdentity
from tests.support.server import RunningServer, eventually, make_config, run_server

pytestmark = [pytest.mark.serial, pytest.mark.full]

MAX_K = 3
WAIT_S = 240.0

# With K = 3, all accepted, a step takes 39 instead of 21 ms for one generation and gives 4 tokens instead of 1; for
# eight it takes 169 instead of 24 ms.
DEAR_AT_LARGE_BATCHES = ServiceTimes(decode_base_s=0.02, decode_per_seq_s=5e-4, draft_s=2e-4, verify_per_token_s=6e-3)
QUICK = ServiceTimes(decode_base_s=1e-3)
CONFIG = ("admission.user_requests_per_s=0", "scheduling.max_slots=8")
ONE_K = ("--seconds", "0.5", "--set", "editor.max_tokens=4", "--rounds", "3", "--concurrency", "1", "--k", "1")
IN_SMALL = ("--seconds", "0.2", "--set", "editor.max_tokens=9")


@asynccontextmanager
async def serving(
    times: ServiceTimes, *overrides: str, max_num_speculative_tokens: int = MAX_K
) -> AsyncIterator[RunningServer]:
    def make_engine() -> ScriptedEngine:
        return ScriptedEngine(
            times=times, num_speculative_tokens=max_num_speculative_tokens, acceptance_rate=1.0, max_num_seqs=8
        )

    async with run_server(make_config(*CONFIG, *overrides), make_engine) as server:
        yield server


async def start(server: RunningServer, *more: str) -> asyncio.subprocess.Process:
    """Start the command in a process of its own: one event loop of gRPC's is enough for one process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    addresses = ("--server", server.ready.address, "--admin", server.ready.admin_address)
    command = [sys.executable, "-m", "loadtest", "tune-k", *addresses, *more]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)


async def tune(server: RunningServer, *more: str) -> str:
    """Run the command; return its output."""
    child = await start(server, *more)
    try:
        out, said = await asyncio.wait_for(child.communicate(), WAIT_S)
    finally:
        await stop(child)
    assert child.returncode == 0, said.decode()
    return out.decode()


async def stop(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
        await asyncio.wait_for(child.wait(), WAIT_S)


def tuner(server: RunningServer, operator: Operator, address: str = "") -> Tuner:
    scenario = Scenario.load("steady")
    return Tuner(operator, {"": Replay(address or server.ready.address, scenario)}, scenario, lambda *_step: None)


@pytest.mark.timeout(300)
async def test_it_finds_the_best_table_in_a_file_for_operators_and_restores_the_server(tmp_path: Path) -> None:
    from completion_server.client.speculation_command import read_schedule

    out, html = tmp_path / "schedule.json", tmp_path / "tuning.html"
    async with serving(DEAR_AT_LARGE_BATCHES) as server, Operator(server.ready.admin_address) as operator:
        before = await operator.get()
        options = ["--rounds", "4", "--concurrency", "1,8", "--k", "3"]
        output = await tune(server, *IN_SMALL, *options, "--out", str(out), "--html", str(html))
        after = await operator.get()
    found = json.loads(out.read_text())
    assert (found["table"], found["crossover_batch"]) == ([[1, 2, 3], [3, 8, 0]], 3)
    assert found["verification"]["best_fixed_k"] in {0, 3}
    assert found["verification"]["table_over_off"]["value"] > 1
    rows = [[row.first_batch_size, row.last_batch_size, row.num_speculative_tokens] for row in read_schedule(out)]
    assert rows == found["schedule"]
    assert "Recommended: " in output
    alone = {each["k"]: each for each in found["cells"] if each["concurrency"] == 1}
    assert alone[3]["accepted_length"] > 3
    assert alone[3]["tokens_per_s"] > alone[0]["tokens_per_s"]
    assert alone[0]["acceptance"] is None
    assert html.read_text().startswith("<!doctype html>")
    assert (after.mode, after.by, after.schedule) == (before.mode, before.by, before.schedule)


@pytest.mark.timeout(300)
async def test_a_tuning_over_tls_does_not_touch_the_completion_cache(make_identity: MakeIdentity) -> None:
    """The server and its admin listener have certificates of their own."""
    files = {"tls": make_identity("server"), "admin_tls": make_identity("admin")}
    overrides = [
        f"server.{name}.{part}={getattr(each, part)}" for name, each in files.items() for part in ("certificate", "key")
    ]
    async with serving(QUICK, "cache.enabled=true", *overrides) as server:
        options = ("--tls-ca", str(files["tls"].certificate), "--admin-tls-ca", str(files["admin_tls"].certificate))
        output = await tune(server, *ONE_K, *options, "--json")
        num_lookups = server.count("completion_cache_misses_total", level="local", reason="absent")
        num_lookups += server.count("completion_cache_hits_total", level="local")
        assert (num_lookups, server.count("completion_cache_entries")) == (0, 0)
    found = json.loads(output)
    assert found["valid"]
    assert sum(each["num_answers"] for each in found["cells"]) > 0
    assert not any(each["num_cached"] for each in found["cells"])
    assert not any("cache" in trouble for trouble in found["troubles"])


@pytest.mark.timeout(300)
async def test_ctrl_c_restores_the_active_schedule() -> None:
    async with serving(QUICK) as server, Operator(server.ready.admin_address) as operator:
        child = await start(server, "--concurrency", "1")

        async def is_tuning() -> bool:
            assert child.returncode is None
            return (await operator.get()).by == "loadtest"

        try:
            await eventually(is_tuning, WAIT_S)
            child.send_signal(signal.SIGINT)
            _out, said = await asyncio.wait_for(child.communicate(), WAIT_S)
        finally:
            await stop(child)
        after = await operator.get()
    assert child.returncode == 130, said
    assert b"the previous setting is active again" in said
    assert (after.mode, after.by) == (pb.SPECULATION_MODE_FIXED, "configuration")
    assert after.schedule[0].num_speculative_tokens == MAX_K


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--concurrency", "1,x"), "--concurrency: numbers of at least 1 with commas between them; got 'x' in '1,x'"),
        (("--k", "-1"), "--k: numbers of at least 0"),
        (("--out", "/nowhere/schedule.json"), "there is no folder /nowhere"),
        (("--admin", "localhost:port"), "--admin: must be HOST:PORT, got 'localhost:port'"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_is_asked(options: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["tune-k", "--server", "127.0.0.1:1", *options])
    assert result.exit_code == 2
    assert said in result.output


async def test_a_server_that_cannot_be_tuned_says_why_and_keeps_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.targets.grpc.CONNECT_S", 1.0)
    async with serving(QUICK) as server, Operator(server.ready.admin_address) as operator:
        for settings, address, said in (
            (TuningSettings((1, 9)), "", "--concurrency: 9 is over the 8 requests that the server has in its engine"),
            (TuningSettings((1,), ks=(4,)), "", "--k: 4 is over the 3 draft tokens that the engine was started with"),
            (TuningSettings((1,)), "127.0.0.1:1", r"no connection to 127\.0\.0\.1:1"),
        ):
            with pytest.raises((TuningError, TargetError), match=said):
                await tuner(server, operator, address).tune(settings)
        assert (await operator.get()).by == "configuration"
        for address, said in (
            ("127.0.0.1:1", r"127\.0\.0\.1:1: the admin listener does not answer"),
            (server.ready.address, "this is not a server's admin listener"),
        ):
            async with Operator(address) as other:
                with pytest.raises(TargetError, match=said):
                    await other.get()
    async with serving(QUICK, max_num_speculative_tokens=0) as server, Operator(server.ready.admin_address) as operator:
        with pytest.raises(TargetError, match=r"can't change .*: the engine was started without a draft model"):
            await tuner(server, operator).tune(TuningSettings())
