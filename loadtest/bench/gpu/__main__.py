"""Measures a GPU in three parts, each of which adds its figures to work/gpu/gpu.json.

functional: the same greedy text with drafts, aborts, a restart, and SIGTERM that leaves nothing on the GPU.
speculation: a server of a 13B-sized INT8 target with a 1B-sized draft at each K, against one without a draft.
sessions: how many editors such a server serves at the objective.

Not run by us yet: no GPU was at hand. `--quick` runs all of it in small shapes on a CPU, to try the program.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from completion_server import __version__
from completion_server.engine.vllm.process import PLUGIN_GROUP, PLUGINS, check_plugins
from loadtest.bench import speculation
from loadtest.bench.gpu import functional
from loadtest.bench.gpu.models import draft_settings, session_settings, target_settings, write_models
from loadtest.bench.runner.benchmark import FOLDER, ServerOptions, benchmark, for_json, option, write_text
from loadtest.bench.runner.server import ServerProcess
from loadtest.bench.speculation import MAX_AT_ONCE, MAX_K, SpeculationOptions
from loadtest.processes.child import StartError
from loadtest.tuning.choice import MIN_ROUNDS

OBJECTIVE = "pause_ttft_ms_p95<200"
_SEARCH = ("editors-10k", 250, 20_000, 20.0, 128)
_TINY_SEARCH = ("steady", 1, 2, 4.0, 8)
"""Scenario, first and largest number of sessions, seconds of a run, and sequences of the engine."""
_GPU_SHARE = 0.44
_CHECKOUT = Path(__file__).parents[3]


async def measure_speculation(options: ServerOptions, console: Console) -> Mapping[str, Any]:
    """Measure the gain of the draft as `loadtest.bench.speculation` does; both servers share the GPU."""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        write_models(Path(folder), is_tiny=options.quick)
        target = target_settings(Path(folder), MAX_AT_ONCE, is_tiny=options.quick)
        if not options.quick:
            target.append(f"engine.vllm.gpu_memory_utilization={_GPU_SHARE}")
        sizes = {"k": "2", "rounds": MIN_ROUNDS, "seconds": 0.3, "changes": 3} if options.quick else {"k": "1,3,5,8"}
        own = SpeculationOptions(
            config=options.config, overrides=(*target, *options.overrides), quick=options.quick, **sizes
        )
        drafting = draft_settings(Path(folder), MAX_AT_ONCE, MAX_K, is_tiny=options.quick)
        return await speculation.measure(own, console, drafting)


async def measure_sessions(options: ServerOptions, console: Console) -> Mapping[str, Any]:
    """Search how many editors are served at the objective. Raises StartError if the search has no result."""
    scenario, first, most, seconds, num_seqs = _TINY_SEARCH if options.quick else _SEARCH
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        write_models(Path(folder), is_tiny=options.quick)
        settings = session_settings(Path(folder), num_seqs, is_tiny=options.quick)
        with console.status("starting the server"):
            server = ServerProcess(options.config, (*settings, *options.overrides))
        with server:
            command = [
                sys.executable, "-m", "loadtest", "capacity", scenario, "--json", "--gate", OBJECTIVE,
                "--target", f"grpc://{server.ready['address']}", "--tolerance", "0.1", "--repeats", "1",
                "--from", str(first), "--to", str(most), "--duration", str(seconds),
                "--set", "criteria.gpu_hour_usd=3.5",
            ]  # fmt: skip
            search = partial(subprocess.run, stdout=subprocess.PIPE, text=True, check=False)
            done = await asyncio.to_thread(search, command)
    if not done.stdout:
        raise StartError(f"the capacity search ended with status {done.returncode}; why is above")
    return session_figures(json.loads(done.stdout.splitlines()[-1]))


def session_figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sessions, whether the generator was the limit, and the figures of the largest run that passed."""
    passed = [each for each in found["trials"] if each["is_passed"]]
    best: Mapping[str, Any] = max(passed, key=lambda each: each["sessions"], default={"figures": {}})
    kept = {name: found[name] for name in ("sessions", "fails_at", "is_generator_bound")}
    return kept | {"objective": OBJECTIVE, "figures": best["figures"]}


PARTS = {"functional": functional.measure, "speculation": measure_speculation, "sessions": measure_sessions}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    part: tuple[str, ...] = option((), "One part; may be repeated.  [all]", click.Choice(list(PARTS)))
    out: Path = option(Path("work/gpu"), "A folder for gpu.json, which keeps the figures of the other parts.", FOLDER)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure this machine's GPU. The last line is a JSON object.

    \b
    Example, in the environment for CUDA, on an H200:
        make bench-gpu
        .venv-cuda/bin/python -m loadtest.bench.gpu --part sessions
    """
    path = options.out / "gpu.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    driver, device = functional.ask_driver("driver_version"), functional.ask_driver("name")
    found |= {"device": device or "cpu", "driver": driver, "tiny": options.quick}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        find_plugins(Path(folder))
        for part in options.part or PARTS:
            console.print(f"part: {part}")
            found[part] = for_json(asyncio.run(PARTS[part](options, console)))
            write_text(path, json.dumps(found, indent=1) + "\n")
    return found


def find_plugins(folder: Path) -> None:
    """Have vLLM find the server's plugins in this process and in those that it starts, also in a bare checkout.

    vLLM loads plugins by the entry points of installed packages, in each of its processes. They look on the path that
    they inherit, so a folder there with the metadata of an installation is enough. `folder` is new, and stays
    meanwhile.

    Raises:
        ConfigError: vLLM would not find them all the same.

    """
    if not {entry.name for entry in entry_points(group=PLUGIN_GROUP)}.issuperset(PLUGINS):
        project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{__version__}.dist-info"
        entries = [f"{name} = {value}" for name, value in project["entry-points"][PLUGIN_GROUP].items()]
        write_text(info / "METADATA", f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {__version__}\n")
        write_text(info / "entry_points.txt", "\n".join([f"[{PLUGIN_GROUP}]", *entries, ""]))
        sys.path.append(str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))
    check_plugins()


if __name__ == "__main__":
    main()
