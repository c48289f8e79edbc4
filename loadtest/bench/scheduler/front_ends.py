"""Measures what several front ends on one engine cost the users who type, in virtual time.

The same requests are served by one front end, the reference, and by several, each with the users whose connections a
hash gives it. All have the server's service and scheduler; the engine has the step times of `bench-steps`, or slots
that don't delay each other. Each round has other users; a ratio is of the sums over all rounds, its interval that of
the rounds' own ratios (normal, 95%).

- seen: completions that came in time and stood long enough to be read.
- inversions: requests that started while a more urgent one had waited in another front end for longer than a ring
  takes; with the reference, of the front ends that the users would have. Some are due to shares.
- idle: slots that were free while a request waited, of all slots.
- an abuser, of `bench.scheduler.sharing`, on one of the front ends.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import click
from rich.console import Console

from loadtest.bench.runner.benchmark import POSITIVE, Options, Result, benchmark, option
from loadtest.bench.runner.figures import percentile, shown, text_table
from loadtest.simulation.front_ends import FrontEnds, inversions_of
from loadtest.simulation.sharing import AbuseModel, beside_an_abuser, overload
from loadtest.simulation.workload import Policy, Workload, figures_of
from loadtest.simulation.world import simulate_several


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    seconds: float = option(20.0, "Virtual time of a run.", click.FloatRange(1))
    rounds: int = option(8, "Runs of each kind, each with other users.", click.IntRange(2))
    loads: tuple[float, ...] = option(
        (1.0, 2.0, 4.0), "Multiple of the requests that the engine can serve; may be repeated.", POSITIVE, "--load"
    )
    nums: tuple[int, ...] = option((2, 4, 8), "Numbers of front ends; may be repeated.", click.IntRange(2), "--num")
    ring_ms: float = option(0.2, "How long a ring takes.", click.FloatRange(0))
    processes: int = option(2, "Runs at once.", click.IntRange(1))


@dataclass(frozen=True, slots=True)
class _Run:
    engine: str
    load: float
    num: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Found:
    seen_per_s: float
    idle_share: float
    num_starts: int
    inverted_by_s: Mapping[int, Sequence[float]]
    """By the number of front ends that the users are spread over."""


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Measure several front ends on one engine against one. The last line is a JSON object."""
    runs = [
        _Run(engine, load, num, seed)
        for engine in ("measured", "slots")
        for load in options.loads
        for num in (1, *options.nums)
        for seed in range(options.rounds)
    ]
    abuses = [(num, seed) for num in (1, *options.nums) for seed in range(options.rounds)]
    with console.status("serving"), ProcessPoolExecutor(options.processes) as pool:
        found = dict(zip(runs, pool.map(_serve, runs, [options] * len(runs)), strict=True))
        abused = dict(zip(abuses, pool.map(_abuse, abuses, [options] * len(abuses)), strict=True))
    parts = [
        _compared(engine, load, num, found, options)
        for engine in ("measured", "slots")
        for load in options.loads
        for num in options.nums
    ]
    abuser = {
        str(num): {
            name: fmean(abused[num, seed][name] for seed in range(options.rounds))
            for name in ("others_answered_ratio", "abuser_tokens_share")
        }
        for num in (1, *options.nums)
    }
    figures = {
        "least_seen_ratio": min(part["seen_ratio"] for part in parts),
        "most_idle_share": max(part["idle_share"] for part in parts),
        "most_inverted_share": max(part["inverted_share"] - part["inverted_share_of_one"] for part in parts),
        "abuser": abuser,
        "parts": parts,
    }
    headings = (
        "engine", "load", "front ends", "seen/s", "ratio", "+/-", "idle", "inverted", "of one", "p50 ms", "p99 ms",
    )  # fmt: skip
    rows = [
        (
            part["engine"], f"{part['load']:g}", str(part["num"]), shown(part["seen_per_s"]),
            shown(part["seen_ratio"], 3), shown(part["seen_ratio_high"] - part["seen_ratio"], 3),
            f"{part['idle_share']:.3%}", f"{part['inverted_share']:.2%}", f"{part['inverted_share_of_one']:.2%}",
            shown(part["inverted_ms_p50"]), shown(part["inverted_ms_p99"]),
        )
        for part in parts
    ]  # fmt: skip
    abuser_rows = [(num, *(shown(each, 3) for each in part.values())) for num, part in abuser.items()]
    return Result(
        figures,
        [
            text_table("Several front ends against one, with the same users", headings, rows),
            text_table("An abuser on one of them", ("front ends", "others answered", "its tokens"), abuser_rows),
        ],
    )


def _workload(engine: str, load: float, seconds: float, seed: int) -> Workload:
    if engine == "measured":
        return overload(load, seconds, seed)
    return Workload(load=load, seconds=seconds, seed=seed, num_slots=16, hangs_up=True)


def _serve(run: _Run, options: _Options) -> _Found:
    workload, front_ends = _workload(run.engine, run.load, options.seconds, run.seed), _front_ends(run.num, options)
    requests = workload.requests()
    results, idle_slot_s = simulate_several(workload, Policy(), requests, front_ends)
    inversions = {
        num: inversions_of(results, workload, _front_ends(num, options))
        for num in (options.nums if run.num == 1 else (run.num,))
    }
    return _Found(
        figures_of(results, workload).seen_per_s,
        idle_slot_s / (workload.num_slots * requests[-1].at),
        next(iter(inversions.values())).num_starts,
        {num: each.by_s for num, each in inversions.items()},
    )


def _abuse(run: tuple[int, int], options: _Options) -> dict[str, float]:
    num, seed = run
    workload, front_ends = overload(2.0, options.seconds, seed), _front_ends(num, options)
    calm, _ = beside_an_abuser(workload, None, front_ends)
    users, abuser = beside_an_abuser(workload, AbuseModel(), front_ends)
    return {
        "others_answered_ratio": users.answered_share / calm.answered_share,
        "abuser_tokens_share": abuser.num_tokens / (abuser.num_tokens + users.num_tokens),
    }


def _front_ends(num: int, options: _Options) -> FrontEnds:
    return FrontEnds(num, options.ring_ms / 1000)


def _compared(engine: str, load: float, num: int, found: Mapping[_Run, _Found], options: _Options) -> dict[str, Any]:
    """Return the figures of several front ends beside those of one."""
    seeds = range(options.rounds)
    several, one = ([found[_Run(engine, load, each, seed)] for seed in seeds] for each in (num, 1))
    ratio = _sum(each.seen_per_s for each in several) / _sum(each.seen_per_s for each in one)
    ratios = [each.seen_per_s / other.seen_per_s for each, other in zip(several, one, strict=True)]
    within = 1.96 * stdev(ratios) / math.sqrt(len(ratios))
    num_of_one = sum(len(each.inverted_by_s[num]) for each in one)
    by_ms = sorted(1000 * by_s for each in several for by_s in each.inverted_by_s[num])
    return {
        "engine": engine,
        "load": load,
        "num": num,
        "seen_per_s": fmean(each.seen_per_s for each in several),
        "seen_ratio": ratio,
        "seen_ratio_low": ratio - within,
        "seen_ratio_high": ratio + within,
        "idle_share": fmean(each.idle_share for each in several),
        "inverted_share": len(by_ms) / _sum(each.num_starts for each in several),
        "inverted_share_of_one": num_of_one / _sum(each.num_starts for each in one),
        "inverted_ms_p50": percentile(by_ms, 50),
        "inverted_ms_p99": percentile(by_ms, 99),
    }


def _sum(values: Iterable[float]) -> float:
    return math.fsum(values)


if __name__ == "__main__":
    main()
