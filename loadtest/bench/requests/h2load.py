"""Measures the front end with h2load, a client in C that costs next to nothing, beside a bare gRPC server.

Every request is the same `Complete` call of a named user with 3,000 + 800 characters, on the scripted engine with
instant times. The server keeps the tokens of a named user's document; without a name it tokenises each text anew.
Nothing is superseded, joined or cached. Some requests are always open, so the server's process is busy all the time.
The figures are its CPU time for a request, and the requests that it serves in a second.
"""

import contextlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from completion.v1 import completion_pb2 as pb
from loadtest.bench.runner.front_end import bare_server, cpu_s
from loadtest.bench.runner.server import SCRIPTED, SERVES_ALL, ServerProcess
from loadtest.processes.child import StartError
from loadtest.processes.meter import MetricsError, read_counter

OVERRIDES = (
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
_CONNECTIONS, _OPEN_EACH = 8, 4
_USER = "h2load"
_PREFIX_CHARS, _SUFFIX_CHARS = 3000, 800
_METHOD = f"/{pb.DESCRIPTOR.services_by_name['CompletionService'].full_name}/Complete"
_LINE = "    value = compute(item, 3)\n"
_FINISHED = re.compile(r"finished in [^,]*, (?P<rate>[\d.]+) req/s")
_DONE = re.compile(r"(?P<succeeded>\d+) succeeded, (?P<failed>\d+) failed")
_ANSWERED = ("stop", "length")
_LIMIT_S = 60.0


class H2loadError(StartError):
    """h2load is not installed, or requests failed."""


class H2loadTurn(NamedTuple):
    """One turn of a server."""

    cpu_ms: float
    """CPU milliseconds of its process for a request."""
    requests_per_s: float
    num_requests: int


def find_h2load() -> str:
    """Return the path of h2load. Raises H2loadError if it is not installed."""
    found = shutil.which("h2load")
    if found is None:
        raise H2loadError("h2load is not installed; on Debian: apt-get install nghttp2-client")
    return found


def measure(config: Path, overrides: Sequence[str], rounds: int, seconds: float) -> dict[str, float]:
    """Measure the server and a bare server in turns of `seconds`; return the figures.

    The best of all turns counts, because other work can only add time. Raises H2loadError if h2load is not installed,
    or requests failed.
    """
    served: list[H2loadTurn] = []
    bare: list[H2loadTurn] = []
    program = find_h2load()
    with (
        tempfile.TemporaryDirectory(prefix="h2load-") as folder,
        ServerProcess(config, (*OVERRIDES, *overrides), has_metrics=True) as server,
        bare_server(0) as (bare_address, bare_pid),
    ):
        body = Path(folder, "body")
        body.write_bytes(_body())
        metrics = f"http://{server.ready['metrics_address']}/metrics"
        for _ in range(rounds):
            before = _num_answered(metrics)
            served.append(_turn(program, body, server.ready["address"], server.pid, seconds))
            if _num_answered(metrics) - before < served[-1].num_requests:
                raise H2loadError("h2load: the server did not answer all requests with a completion")
            bare.append(_turn(program, body, bare_address, bare_pid, seconds))
    cpu_ms, bare_cpu_ms = (min(each.cpu_ms for each in turns) for turns in (served, bare))
    return {
        "h2load_cpu_ms": cpu_ms,
        "h2load_bare_cpu_ms": bare_cpu_ms,
        "h2load_ratio_to_bare": cpu_ms / bare_cpu_ms,
        "h2load_requests_per_s": max(each.requests_per_s for each in served),
        "h2load_bare_requests_per_s": max(each.requests_per_s for each in bare),
    }


def _turn(program: str, body: Path, address: str, pid: int, seconds: float) -> H2loadTurn:
    command = [
        program, "--duration", f"{seconds:g}", "--clients", str(_CONNECTIONS),
        "--max-concurrent-streams", str(_OPEN_EACH), "--data", str(body),
        "--header", "content-type: application/grpc", "--header", "te: trailers", "--header", f"x-user-id: {_USER}",
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
    return H2loadTurn(used_s * 1000 / num_requests, float(finished["rate"]), num_requests)


def _body() -> bytes:
    """Return the request as gRPC frames it."""
    text = _LINE * (_PREFIX_CHARS // len(_LINE) + 1)
    request = pb.CompleteRequest(
        session_id="h2load",
        sequence=1,
        document_uri="file:///h2load.py",
        language_id="python",
        prefix=text[:_PREFIX_CHARS],
        suffix=text[:_SUFFIX_CHARS],
        mode=pb.MODE_SINGLE_LINE,
        max_tokens=16,
        temperature=0.0,
        without_completion_cache=True,
    )
    message = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def _num_answered(metrics: str) -> float:
    found = 0.0
    for outcome in _ANSWERED:
        with contextlib.suppress(MetricsError):  # no request had this outcome so far
            found += read_counter(metrics, ("completion_requests_total",), {"outcome": outcome})
    return found
