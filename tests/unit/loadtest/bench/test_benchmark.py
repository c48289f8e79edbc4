"""The runner of the benchmarks: the command, the document, and the turns of contestants."""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner
from rich.console import Console

from loadtest.bench.bare import engine_env, peer_args
from loadtest.bench.capacity import main as capacity
from loadtest.bench.peers import serve_flags
from loadtest.bench.runner.benchmark import Options, benchmark, option
from loadtest.bench.runner.contest import Contest, Contestant, rotated
from loadtest.bench.speculation import main as speculation
from loadtest.processes.child import StartError
from loadtest.tuning.choice import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Options):
    rounds: int = option(4, "How many.", int, quick=1)
    names: tuple[str, ...] = option((), "May be repeated.", None, "--name")


@benchmark(Sizes)
def main(options: Sizes, _console: Console) -> dict[str, Any]:
    """Measure nothing."""
    if options.rounds < 0:
        raise StartError("it did not start")
    by = {"a": {"b": 0.5}, 4: (1e-7 / 3, math.inf)}
    figures = {"gain": Estimate(1.23456789, 1.0, math.nan), "by": by, "share": 1, "share_interval": [0, 2]}
    return figures | {"rounds": options.rounds, "names": options.names}


FIGURES = {"gain": 1.23457, "by": {"a": {"b": 0.5}, "4": [3.33333e-08, None]}, "share": 1, "rounds": 2}


def test_the_last_line_is_the_figures_after_the_table() -> None:
    done = CliRunner().invoke(main, ["--rounds", "2", "--name", "a", "--name", "b"])
    assert done.exit_code == 0
    assert "1.23 (1-nan)" in done.stdout
    assert "by a b" in done.stdout
    more = {"gain_low": 1.0, "gain_high": None, "share_interval": [0, 2], "names": ["a", "b"]}
    assert json.loads(done.stdout.splitlines()[-1]) == FIGURES | more


@pytest.mark.parametrize(("options", "rounds"), [(["--quick"], 1), (["--quick", "--rounds", "3"], 3), ([], 4)])
def test_a_quick_run_has_its_own_defaults(options: list[str], rounds: int) -> None:
    assert json.loads(CliRunner().invoke(main, ["--json", *options]).stdout)["rounds"] == rounds


def test_an_expected_error_ends_the_command_with_its_message() -> None:
    done = CliRunner().invoke(main, ["--rounds", "-1"])
    assert (done.exit_code, done.stderr, done.stdout) == (1, "Error: it did not start\n", "")


def test_the_document_has_the_figures_and_what_they_were_measured_with(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / "nothing.json"
    assert CliRunner().invoke(main, ["--record", str(path), "--rounds", "2"]).exit_code == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["benchmark"] == "nothing"
    assert found["figures"] == FIGURES | {"names": []}
    assert found["intervals"] == {"gain": [1.0, None], "share": [0, 2]}
    assert found["workload"] == {"rounds": 2, "names": [], "quick": False}
    assert " x " in found["processor"]
    assert {"python", "grpcio"} <= found["versions"].keys()
    assert found.keys() >= {"commit", "date"}


class Server(Contestant):
    """A contestant without a process, which is its own `process`."""

    is_running = True

    def __init__(self) -> None:
        self.process: Any = self

    def pause(self) -> None:
        assert self.is_running
        self.is_running = False

    def resume(self) -> None:
        assert not self.is_running
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False


async def test_one_server_runs_at_a_time() -> None:
    async with Contest(Console(file=io.StringIO()), settle_s=0) as contest:
        servers = [await contest.start(f"server {number}", Server) for number in range(3)]
        assert not any(each.is_running for each in servers)
        for place in (1, 0, 0, 2, 1):
            await contest.give_turn(servers[place].process)
            assert [each.is_running for each in servers] == [other == place for other in range(3)]
    assert [rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


@pytest.mark.parametrize(
    ("command", "options", "exit_code", "message"),
    [
        (capacity, ("--only", "llama.cpp"), 2, "takes part only after `make llama-server`"),
        (capacity, ("--only", "nobody"), 2, "is not one of 'this server'"),
        (speculation, ("--k", "1,16"), 1, "--k: must be at most 8, got 16"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    command: Command,
    options: tuple[str, ...],
    exit_code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # nothing is built here
    (tmp_path / "server.toml").write_text("")
    refused = CliRunner().invoke(command, ["--config", "server.toml", *options])
    assert refused.exit_code == exit_code
    assert message in " ".join(refused.stderr.replace("│", "").split())


def test_a_peer_has_the_servers_engine_without_this_projects_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, schedule = "VLLM_USE_V2_MODEL_RUNNER", "num_speculative_tokens_per_batch_size"
    for name in (runner, "VLLM_WORKER_MULTIPROC_METHOD"):
        monkeypatch.delenv(name, raising=False)
    drafts = {"method": "draft_model", "model": "d", "num_speculative_tokens": 4}
    given = {"model": "m", "scheduler_cls": "ours", "worker_extension_cls": "ours", "enforce_eager": False}
    given |= {"speculative_config": drafts | {schedule: [[1, 64, 4]]}}
    assert peer_args(given) == {"model": "m", "enforce_eager": False, "speculative_config": drafts}
    assert serve_flags(peer_args(given)) == ["--no-enforce-eager", "--speculative-config", json.dumps(drafts)]
    env = engine_env({"engine": {}, "engine_args": given})
    assert (env[runner], env["VLLM_WORKER_MULTIPROC_METHOD"]) == ("0", "spawn"), "the runner for its drafts"
    assert runner not in engine_env({"engine": {}, "engine_args": {"model": "m"}}), "vLLM's own choice"
