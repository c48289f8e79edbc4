"""Finds how many editors a server can promise an answer to: this server, `vllm serve` and llama.cpp's server.

The promise: of the real pauses (the user waits 500 ms or more) that any idle server would answer with text, at least
90% get their first text within 250 ms. The capacity is the largest number of simulated editors for which it holds.
docs/benchmarks.md has the contestants. The rules of the comparison:

- Requests are sent at predetermined times, regardless of the earlier ones; latencies count from those times.
- A round has one trace for each context; a trial of a number of editors has its first sessions. So all contestants get
  the same texts and pauses. Each run has its own part of all caches: no trial finds the prompts or the completions of
  another.
- llama.cpp has the same weights (Q8_0), and a slot for each sequence that this server's engine takes.
- In each round the load tester's capacity search finds two numbers of editors between which the promise breaks, and the
  capacity is interpolated between them. Intervals are of the rounds, of which there are at least three.
"""

import asyncio
import gc
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from loadtest.bench.capacity_trials import (
    CONTEXTS,
    LONGEST,
    PROMISED_SHARE,
    WITHIN_S,
    AnswerablePauses,
    ContextSize,
    Key,
    crossing,
    first_sessions,
    judge,
    only,
    replay_pauses,
    run_round,
    trial_s,
    with_sliding_window,
)
from loadtest.bench.peers.llama_server import LlamaServer
from loadtest.bench.peers.vllm_serve import VllmServe, vllm_contestant
from loadtest.bench.runner.benchmark import COUNT, FILE, POSITIVE, ServerOptions, benchmark, option, write_text
from loadtest.bench.runner.contest import Contest
from loadtest.bench.runner.editing import EditingContestant, EditingRuns, ServerPrompts, server_contestant
from loadtest.bench.runner.figures import percentile, ratio
from loadtest.bench.runner.server import ServerProcess, effective_config
from loadtest.report.canvas import bars_svg
from loadtest.search import Trial
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace
from loadtest.tuning.choice import MIN_ROUNDS, Estimate

OURS, OURS_UNCACHED = "this server", "this server, completion cache off"
VLLM, VLLM_SAME_PROMPTS, LLAMA = VllmServe.name, "vllm serve, our prompts", LlamaServer.name
NAMES = (OURS, OURS_UNCACHED, VLLM, VLLM_SAME_PROMPTS, LLAMA)

_FIGURES = {
    OURS_UNCACHED: ("editors_{}_cache_off", "ratio_{}_cache_off"),
    VLLM: ("editors_{}_vllm_serve", "ratio_{}"),
    VLLM_SAME_PROMPTS: ("editors_{}_same_prompts", "ratio_{}_same_prompts"),
    LLAMA: ("editors_{}_llama_cpp", "ratio_{}_llama_cpp"),
}
"""The names of another contestant's editors, and of this server's relative to them, by context."""
_LEAST_EDITORS = 0.5
"""Stands for a capacity of 0, of which there is no ratio."""
_WARM_UP_SESSIONS, _WARM_UP_S = 8, 4.0
_LLAMA_SERVER = Path(".venv-llama/bin/llama-server")

Rounds = dict[str, list[tuple[Trial, ...]]]
"""The trials of each contestant, by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    minutes: float = option(15.0, "Rounds begin until then, at least three.", POSITIVE)
    seconds: float = option(6.0, "Shortest length of a trial.", click.FloatRange(1), quick=3.0)
    start: int = option(12, "Editors to begin with.", COUNT, "--from", quick=4)
    most: int = option(192, "Editors at most.", COUNT, "--to", quick=8)
    max_tokens: int = option(24, "", COUNT)
    seed: int = option(0, "Who types what and when.", int)
    only: tuple[str, ...] = option(
        (), f'Measure "{OURS}" and this contestant. May be repeated.  [default: all]', click.Choice(NAMES)
    )
    picture: Path | None = option(None, "Draw the editors into this SVG file.", FILE)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Find the number of editors that each server can serve. The last line is a JSON object.

    llama.cpp takes part after `make llama-server`.

    \b
    Example:
        python -m loadtest.bench.capacity --quick
        python -m loadtest.bench.capacity --only "this server, completion cache off"
        python -m loadtest.bench.capacity --minutes 30 --picture docs/images/capacity.svg
    """
    has_llama = _LLAMA_SERVER.exists()
    if LLAMA in options.only and not has_llama:
        msg = f"{LLAMA} takes part only after `make llama-server`"
        raise click.BadParameter(msg, param_hint="--only")
    found = asyncio.run(_measure(options, console, has_llama=has_llama))
    if options.picture is not None:
        write_text(options.picture, picture(found))
    return headline(found) | {"workload": _workload(options), "contexts": details(found)}


async def _measure(options: _Options, console: Console, *, has_llama: bool) -> dict[str, Rounds]:
    """Return the rounds by context."""
    begun = time.monotonic()
    found: dict[str, Rounds] = {each.name: {} for each in CONTEXTS}
    async with Contest(console) as contest:
        contestants = {each.name: each for each in await _start(contest, options, has_llama=has_llama)}
        runner = _Runner(contestants, EditingRuns(contest), options, console)
        await runner.warm_up()
        number, round_s = 0, 0.0
        while number < MIN_ROUNDS or time.monotonic() + round_s - begun <= options.minutes * 60:
            round_begun = time.monotonic()
            for context in CONTEXTS:
                for name, trials in (await runner.round(number, context, found[context.name])).items():
                    found[context.name].setdefault(name, []).append(trials)
            number, round_s = number + 1, time.monotonic() - round_begun
            if options.quick:
                break
    return found


async def _start(contest: Contest, options: _Options, *, has_llama: bool) -> list[EditingContestant]:
    """Start the contestants; llama.cpp's is left out without its binary."""
    effective = effective_config(options.config, options.overrides)
    names, settings = {OURS, *(options.only or NAMES)}, ClientSettings(options.max_tokens)
    found: list[EditingContestant] = []
    # A server of a benchmark has no cache by default.
    for name, cache in ((OURS, json.dumps(effective["cache"]["enabled"])), (OURS_UNCACHED, "false")):
        if name in names:
            own = (*options.overrides, f"cache.enabled={cache}")
            server = await contest.start(name, ServerProcess, options.config, own, name)
            found.append(server_contestant(server, settings))
    if {VLLM, VLLM_SAME_PROMPTS} & names:
        prompts, about = ServerPrompts(effective), f"{VLLM}, which may compile the model"
        serve = await contest.start(about, VllmServe, effective, has_own_defaults=True)
        both = (
            vllm_contestant(VLLM, serve, prompts, settings, has_window=True),
            vllm_contestant(VLLM_SAME_PROMPTS, serve, prompts, settings),
        )
        found += [each for each in both if each.name in names]
    if LLAMA in names and has_llama:
        llama = await contest.start(LLAMA, LlamaServer, _LLAMA_SERVER, effective)
        spec = TargetSpec(LLAMA, "llama+http", (llama.host,))
        found.append(EditingContestant(LLAMA, llama.process, lambda _run: HttpTarget(spec, settings), has_window=True))
    return found


@dataclass(slots=True)
class _Runner:
    """Runs the trials on the servers, one server at a time."""

    contestants: Mapping[str, EditingContestant]
    runs: EditingRuns
    options: _Options
    console: Console
    scenario: Scenario = field(default_factory=lambda: Scenario.of({"name": "capacity"}))

    async def warm_up(self) -> None:
        """Drive each contestant a little."""
        for context in CONTEXTS:
            trace = await self._trace("warm-up", context, _WARM_UP_SESSIONS, _WARM_UP_S)
            for each in self.contestants.values():
                await self.runs.drive(each, _sent(each, trace, context))

    async def round(self, number: int, context: ContextSize, before: Rounds) -> Mapping[str, tuple[Trial, ...]]:
        """Return a round's trials."""
        least_s, limits = self.options.seconds, (min(self.options.start, self.options.most), self.options.most)
        trace = await self._trace(str(number), context, self.options.most, LONGEST * least_s)
        sent = {name: await asyncio.to_thread(_sent, each, trace, context) for name, each in self.contestants.items()}
        # The completion cache changes no answer, so asking this server again without it would only take time.
        asked = [name for name in self.contestants if name != OURS_UNCACHED]
        pauses = AnswerablePauses([partial(self._replay, self.contestants[name], sent[name]) for name in asked])
        typing = self.scenario.typing
        pauses_per_s = typing.model.keys_per_s * typing.model.share_above(typing.pause_ms / 1000)

        async def run_trial(name: str, sessions: int) -> Trial:
            seconds = trial_s(sessions, least_s, pauses_per_s)
            answerable = await pauses.of(first_sessions(trace, sessions, seconds))
            run = await self.runs.drive(self.contestants[name], first_sessions(sent[name], sessions, seconds))
            trial = judge(sessions, run, answerable)
            self.console.print(
                f"round {number + 1}, {context.name}: {name}, {sessions} editors: "
                f"{trial.figures['share']:.0%} of {trial.figures['pauses']:.0f} pauses in time",
                highlight=False,
            )
            return trial

        gc.collect()
        gc.freeze()  # garbage collections of the prepared traces would delay the generator
        found = await run_round(number, list(self.contestants), capacities(before), limits, run_trial)
        gc.unfreeze()
        return found

    async def _replay(self, contestant: EditingContestant, sent: Trace, pauses: Collection[Key]) -> set[Key]:
        async with self.runs.of(contestant) as target:
            return await replay_pauses(target, only(sent, pauses))

    async def _trace(self, name: str, context: ContextSize, sessions: int, seconds: float) -> Trace:
        documents = {"prefix_chars": context.prefix_chars, "suffix_chars": context.suffix_chars}
        scenario = Scenario.of({"name": "capacity", "documents": documents})
        seed = f"{self.options.seed}/{context.name}/{name}"
        return await asyncio.to_thread(make_trace, scenario.scaled(sessions=sessions, duration_s=seconds, seed=seed))


def _sent(contestant: EditingContestant, trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as the clients of a contestant send it."""
    return contestant.sends(with_sliding_window(trace, context) if contestant.has_window else trace)


def capacities(rounds: Rounds) -> dict[str, list[float]]:
    """Return the editors that each contestant served, by round; the same place is the same trace."""
    return {name: [crossing(each) for each in found] for name, found in rounds.items()}


def editors(found: Sequence[float]) -> Estimate:
    """Return the geometric mean over rounds, with an interval if there are enough rounds."""
    return ratio(found, [1.0] * len(found), _LEAST_EDITORS)


def headline(found: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return the headline figures; a contestant that did not take part has none.

    The generator's lag is the median over all trials of their 99th percentile.
    """
    figures: dict[str, Any] = {}
    for context, rounds in found.items():
        served = capacities(rounds)
        figures[f"editors_{context}"] = editors(served[OURS])
        for name, (own, relative) in _FIGURES.items():
            if name in served:
                figures[own.format(context)] = editors(served[name])
                figures[relative.format(context)] = ratio(served[OURS], served[name], _LEAST_EDITORS)
    trials = [trial for rounds in found.values() for own in rounds.values() for each in own for trial in each]
    return figures | {"generator_lag_ms_p99": percentile([trial.figures["lag_ms_p99"] for trial in trials], 50)}


def details(found: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return the capacities of all contestants and every trial, nested by context and contestant."""
    return {
        context: {
            name: {
                "editors": editors(own),
                "editors_by_round": own,
                "trials": [[{"editors": one.sessions, **one.figures} for one in each] for each in rounds[name]],
            }
            for name, own in capacities(rounds).items()
        }
        for context, rounds in found.items()
    }


def picture(found: Mapping[str, Rounds]) -> str:
    """Return the chart as an SVG file."""
    by_context = [capacities(rounds) for rounds in found.values()]
    estimates = {name: [editors(each[name]) for each in by_context] for name in by_context[0]}
    series = {name: [(each.value, each.low, each.high) for each in own] for name, own in estimates.items()}
    groups = [f"{each.prefix_chars:,} + {each.suffix_chars} characters" for each in CONTEXTS]
    return bars_svg(series, groups, "editors", "Editors whose pauses get their first text in time")


def _workload(options: _Options) -> dict[str, Any]:
    """Return what the editors do, besides what the scenario's defaults say."""
    contexts = {each.name: {"prefix_chars": each.prefix_chars, "suffix_chars": each.suffix_chars} for each in CONTEXTS}
    given = {name: getattr(options, name) for name in ("minutes", "seconds", "start", "most", "max_tokens", "seed")}
    return {"within_ms": WITHIN_S * 1000, "share": PROMISED_SHARE, "contexts": contexts, **given}


if __name__ == "__main__":
    main()
