"""Measures the CPU time that the front end takes for a request, in process and with h2load.

In process: the front end without gRPC, and its parts (see `cpu_in_process`).

With h2load, a client in C that costs next to nothing, beside a bare gRPC server. Every request is the same `Complete`
call of a named user with 3,000 + 800 characters, on the scripted engine with instant times. The server keeps the tokens
of a named user's document. Nothing is superseded, joined or cached. Some requests are always open, so the server's
process is busy all the time. The figures are its CPU time for a request, and the requests that it serves in a second.

The best of all rounds counts, because other work on the machine can only add CPU time.
"""

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from loadtest import LoadTestError
from loadtest.bench.cpu_in_process import Passes
from loadtest.bench.peers.bare_grpc import bare_server
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option
from loadtest.bench.runner.editing import editors
from loadtest.bench.runner.prompts import prompt_maker
from loadtest.bench.runner.server import SCRIPTED, SERVES_ALL, ServerProcess, cpu_s, effective_config
from loadtest.processes.meter import MetricsError, read_counter
from loadtest.traffic.trace import make_trace

_OVERRIDES = (
    *SERVES_ALL,
    *SCRIPTED,
    "engine.scripted_times=instant",
    "engine.max_num_seqs=128",
    "scheduling.max_slots=128",
    "scheduling.supersede=false",
    "scheduling.typing_through=false",
    "scheduling.single_flight=false",
    "shed.lag_ms=0",
)
_TEXT = "    value = compute(item, 3)\n" * 200
_BODY = pb.CompleteRequest(
    session_id="h2load",
    sequence=1,
    document_uri="file:///h2load.py",
    language_id="python",
    prefix=_TEXT[:3000],
    suffix=_TEXT[:800],
    mode=pb.MODE_SINGLE_LINE,
    max_tokens=16,
    temperature=0.0,
    without_completion_cache=True,
).SerializeToString()
_METHOD = f"/{pb.DESCRIPTOR.services_by_name['CompletionService'].full_name}/Complete"
_CONNECTIONS, _OPEN_EACH = 8, 4
_FINISHED = re.compile(r"finished in [^,]*, (?P<rate>[\d.]+) req/s")
_DONE = re.compile(r"(?P<succeeded>\d+) succeeded, (?P<failed>\d+) failed")
_LIMIT_S = 60.0
_IN_PROCESS_S, _H2LOAD_S = 10.0, 5.0
"""The most virtual seconds of a pass in process, and the most seconds of a turn with h2load."""


class H2loadError(LoadTestError):
    """h2load is not installed, or requests failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(ServerOptions):
    """The options."""

    sessions: int = option(2000, "Editors, in process.", COUNT, quick=40)
    requests_per_s: float = option(600.0, "Asked by all editors together, in process.", click.FloatRange(1), quick=40.0)
    seconds: float = option(20.0, "Of traffic in each pass or turn, at most.", click.FloatRange(1), quick=2.0)
    rounds: int = option(3, "Passes, and turns of each server.", COUNT, quick=1)
    in_process_only: bool = option(False, "Leave h2load out: half a minute, for one change at a time.")
    h2load_only: bool = option(False, "Measure with h2load alone.")
    seed: int = option(0, "Who types what and when.", int)


@benchmark(Sizes)
def main(options: Sizes, console: Console) -> Mapping[str, Any]:
    """Measure the CPU time of a request. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.cpu --h2load-only --rounds 5
        python -m loadtest.bench.cpu --in-process-only
    """
    found: dict[str, Any] = {}
    if not options.in_process_only:
        if options.h2load_only or shutil.which("h2load"):
            found |= with_h2load(options)
        else:
            console.print("h2load is not installed (Debian: nghttp2-client); its figures are left out", style="yellow")
    if not options.h2load_only:
        found |= _in_process(options)
    names = ("sessions", "requests_per_s", "seconds", "rounds", "seed")
    return found | {name: getattr(options, name) for name in names}


class _Turn(NamedTuple):
    """One turn of a server."""

    cpu_ms: float
    """CPU milliseconds of its process for a request."""
    requests_per_s: float
    num_requests: int


def with_h2load(options: Sizes) -> dict[str, float]:
    """Measure the server and a bare server in turns; return the figures.

    Raises H2loadError if h2load is not installed, or requests failed.
    """
    served, bare = list[_Turn](), list[_Turn]()
    with (
        tempfile.TemporaryDirectory(prefix="h2load-") as folder,
        ServerProcess(options.config, (*_OVERRIDES, *options.overrides), has_metrics=True) as server,
        bare_server(0) as (bare_address, bare_pid),
    ):
        body, seconds = Path(folder, "body"), min(_H2LOAD_S, options.seconds)
        body.write_bytes(b"\0" + len(_BODY).to_bytes(4, "big") + _BODY)  # as gRPC frames it
        metrics = f"http://{server.ready['metrics_address']}/metrics"
        for _ in range(options.rounds):
            before = _num_answered(metrics)
            served.append(_turn(body, server.ready["address"], server.pid, seconds))
            if _num_answered(metrics) - before < served[-1].num_requests:
                raise H2loadError("h2load: the server did not answer all requests with a completion")
            bare.append(_turn(body, bare_address, bare_pid, seconds))
    cpu_ms, bare_cpu_ms = (min(each.cpu_ms for each in turns) for turns in (served, bare))
    return {
        "h2load_cpu_ms": cpu_ms,
        "h2load_bare_cpu_ms": bare_cpu_ms,
        "h2load_ratio_to_bare": cpu_ms / bare_cpu_ms,
        "h2load_requests_per_s": max(each.requests_per_s for each in served),
        "h2load_bare_requests_per_s": max(each.requests_per_s for each in bare),
    }


def _turn(body: Path, address: str, pid: int, seconds: float) -> _Turn:
    program = shutil.which("h2load")
    if program is None:
        raise H2loadError("h2load is not installed; on Debian: apt-get install nghttp2-client")
    command = [
        program, "--duration", f"{seconds:g}", "--clients", str(_CONNECTIONS),
        "--max-concurrent-streams", str(_OPEN_EACH), "--data", str(body),
        "--header", "content-type: application/grpc", "--header", "te: trailers", "--header", "x-user-id: h2load",
        f"http://{address}{_METHOD}",
    ]  # fmt: skip
    process = psutil.Process(pid)
    begun_s = cpu_s(process)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + _LIMIT_S)
    used_s = cpu_s(process) - begun_s
    finished, counted = _FINISHED.search(done.stdout), _DONE.search(done.stdout)
    if finished is None or counted is None or int(counted["failed"]) or not int(counted["succeeded"]):
        raise H2loadError(f"h2load: requests to {address} failed:\n{done.stdout}{done.stderr}")
    num_requests = int(counted["succeeded"])
    return _Turn(used_s * 1000 / num_requests, float(finished["rate"]), num_requests)


def _num_answered(metrics: str) -> float:
    found = 0.0
    for outcome in ("stop", "length"):
        with contextlib.suppress(MetricsError):  # no request had this outcome so far
            found += read_counter(metrics, ("completion_requests_total",), {"outcome": outcome})
    return found


def _in_process(options: Sizes) -> dict[str, float]:
    """Measure in this process, with the configured model's prompts."""
    effective = effective_config(options.config, (*options.overrides, "engine.kind=scripted"))
    seconds = min(_IN_PROCESS_S, options.seconds)
    scenario = editors(options.sessions, options.requests_per_s, seconds, options.seed)
    passes = Passes(make_trace(scenario), scenario, prompt_maker(effective).builder)
    measured = [passes.measure() for _ in range(options.rounds)]
    best = {part: min(each[part] for each in measured) for part in measured[0]}
    return {
        "front_end_cpu_ms": best["front_end"],
        "streams_cpu_ms": best["front_end"] - best["pipeline"],
        "scheduling_cpu_ms": best["pipeline"] - best["prompt"] - best["engine"],
        "prompt_cpu_ms": best["prompt"],
        "engine_cpu_ms": best["engine"],
    }


if __name__ == "__main__":
    main()
