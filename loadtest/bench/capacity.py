"""Finds how many editors a server can promise an answer to: this server, `vllm serve` and llama.cpp's server.

The promise: of the real pauses (the user waits 500 ms or more) that any idle server would answer with text, at least
90% get their first text within 250 ms. The capacity is the largest number of simulated editors for which it holds.
docs/benchmarks.md has the contestants.

In each round the load tester's capacity search finds two numbers of editors between which the promise breaks, and the
capacity is interpolated between them. A round has one trace for each context, a trial its first sessions: all get the
same texts and pauses. Each run has its own part of all caches. Latencies count from predetermined times.
"""

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from loadtest.bench.peers import LlamaServer, VllmServe
from loadtest.bench.runner.benchmark import (
    COUNT,
    FILE,
    POSITIVE,
    ServerOptions,
    benchmark,
    option,
    percentile,
    ratio,
    write_text,
)
from loadtest.bench.runner.contest import Contest, EditingContestant, ask_in_turn, rotated
from loadtest.bench.runner.server import ServerProcess, ServerPrompts, effective_config, server_contestant
from loadtest.driving.driver import Run
from loadtest.report.canvas import bars_svg
from loadtest.search import Bisection, SearchSettings, Trial
from loadtest.targets import ClientSettings, Target
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Text, Trace, TypedRequest
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

WITHIN_S, PROMISED_SHARE = 0.25, 0.9
"""The promise: the largest time from the intended time to the first visible text, and the share of the pauses."""
_LEAST_EDITORS = 0.5
"""Stands for a capacity of 0, of which there is no ratio."""
_WARM_UP_SESSIONS, _WARM_UP_S = 8, 4.0
_LLAMA_SERVER = Path(".venv-llama/bin/llama-server")
_LONGEST = 3
"""A trial with few editors takes up to this multiple of the shortest one."""
_PAUSES = 40
"""Pauses that a trial should have."""
_GOES_ON_CHARS = 200
"""Text kept after the cursor's window; an answer is compared with it."""
_TOLERANCE, _FIRST_GROWTH, _LATER_GROWTH = 0.25, 2.0, 1.25
"""Of the search. Rough, because the capacity is interpolated between the last two bounds, and rounds are averaged."""
_CALLERS = 4
"""Few, so that the server is nearly idle; the number does not decide whether an answer has text."""

Key = tuple[int, int]
"""A request of a trace: the numbers of its session and of its sequence."""
Rounds = dict[str, list[tuple[Trial, ...]]]
"""The trials of each contestant, by round."""
RunTrial = Callable[[str, int], Awaitable[Trial]]
"""Runs a contestant, given by name, with a number of editors."""
Replay = Callable[[Collection[Key]], Awaitable[Collection[Key]]]
"""Asks an idle server these pauses of a trace, and returns those that it answers with text."""


class ContextSize(NamedTuple):
    """The text around the cursor that an editor sends."""

    name: str
    prefix_chars: int
    suffix_chars: int


CONTEXTS = (ContextSize("short", 400, 100), ContextSize("long", 1500, 400))


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
    if LLAMA in options.only and not _LLAMA_SERVER.exists():
        raise click.BadParameter(f"{LLAMA} takes part only after `make llama-server`", param_hint="--only")
    found = asyncio.run(_measure(options, console))
    if options.picture is not None:
        write_text(options.picture, picture(found))
    return headline(found)


async def _measure(options: _Options, console: Console) -> dict[str, Rounds]:
    """Return the rounds by context."""
    begun = time.monotonic()
    found: dict[str, Rounds] = {each.name: {} for each in CONTEXTS}
    async with Contest(console) as contest:
        contestants = {each.name: each for each in await _start(contest, options)}
        runner = _Runner(contestants, contest, options)
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


async def _start(contest: Contest, options: _Options) -> list[EditingContestant]:
    """Start the contestants; llama.cpp's is left out without its binary."""
    effective = effective_config(options.config, options.overrides)
    names, settings = {OURS, *(options.only or NAMES)}, ClientSettings(options.max_tokens)
    found: list[EditingContestant] = []
    # A server of a benchmark has no cache by default.
    for name, cache in ((OURS, json.dumps(effective["cache"]["enabled"])), (OURS_UNCACHED, "false")):
        if name in names:
            own = (*options.overrides, f"cache.enabled={cache}")
            found.append(
                server_contestant(await contest.start(name, ServerProcess, options.config, own, name), settings)
            )
    if {VLLM, VLLM_SAME_PROMPTS} & names:
        prompts, about = ServerPrompts(effective), f"{VLLM}, which may compile the model"
        serve = await contest.start(about, VllmServe, effective, has_own_defaults=True)
        wanted = [name for name in (VLLM, VLLM_SAME_PROMPTS) if name in names]
        found += [serve.contestant(name, prompts, settings, has_window=name == VLLM) for name in wanted]
    if LLAMA in names and _LLAMA_SERVER.exists():  # noqa: ASYNC240 - nothing else runs yet
        found.append((await contest.start(LLAMA, LlamaServer, _LLAMA_SERVER, effective)).contestant(settings))
    return found


@dataclass(slots=True)
class _Runner:
    """Runs the trials on the servers, one server at a time."""

    contestants: Mapping[str, EditingContestant]
    contest: Contest
    options: _Options

    async def warm_up(self) -> None:
        """Drive each contestant a little."""
        for context in CONTEXTS:
            trace, _ = await self._trace("warm-up", context, _WARM_UP_SESSIONS, _WARM_UP_S)
            for each in self.contestants.values():
                await self.contest.drive(each, _sent(each, trace, context))

    async def round(self, number: int, context: ContextSize, before: Rounds) -> Mapping[str, tuple[Trial, ...]]:
        """Return a round's trials."""
        least_s, limits = self.options.seconds, (min(self.options.start, self.options.most), self.options.most)
        trace, pauses_per_s = await self._trace(str(number), context, self.options.most, _LONGEST * least_s)
        sent = {name: await asyncio.to_thread(_sent, each, trace, context) for name, each in self.contestants.items()}
        # The completion cache changes no answer, so asking this server again without it would only take time.
        asked = [name for name in self.contestants if name != OURS_UNCACHED]
        pauses = AnswerablePauses([partial(self._replay, self.contestants[name], sent[name]) for name in asked])

        async def run_trial(name: str, sessions: int) -> Trial:
            seconds = min(_LONGEST * least_s, max(least_s, _PAUSES / (pauses_per_s * sessions)))
            answerable = await pauses.of(first_sessions(trace, sessions, seconds))
            run = await self.contest.drive(self.contestants[name], first_sessions(sent[name], sessions, seconds))
            trial = judge(sessions, run, answerable)
            self.contest.console.print(
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
        async with self.contest.target_of(contestant) as target:
            return await replay_pauses(target, only(sent, pauses))

    async def _trace(self, name: str, context: ContextSize, sessions: int, seconds: float) -> tuple[Trace, float]:
        """Return a trace, and how many pauses a second an editor of it makes."""
        documents = {"prefix_chars": context.prefix_chars, "suffix_chars": context.suffix_chars}
        scenario = Scenario.of({"name": "capacity", "documents": documents})
        seed, typing = f"{self.options.seed}/{context.name}/{name}", scenario.typing
        scaled = scenario.scaled(sessions=sessions, duration_s=seconds, seed=seed)
        pauses_per_s = typing.model.keys_per_s * typing.model.share_above(typing.pause_ms / 1000)
        return await asyncio.to_thread(make_trace, scaled), pauses_per_s


def _sent(contestant: EditingContestant, trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as the clients of a contestant send it."""
    return contestant.sends(with_sliding_window(trace, context) if contestant.has_window else trace)


def _with_requests(trace: Trace, is_kept: Callable[[TypedRequest], bool]) -> Trace:
    sessions = [replace(each, requests=tuple(filter(is_kept, each.requests))) for each in trace.sessions]
    return replace(trace, sessions=tuple(sessions))


def first_sessions(trace: Trace, sessions: int, seconds: float) -> Trace:
    """Return the first sessions of a trace and their first seconds.

    A session depends on the seed and its number only, so a trial of 20 sessions has those of a trial of 10.
    """
    first = replace(trace, sessions=trace.sessions[:sessions], duration_s=seconds)
    return _with_requests(first, lambda request: request.intended_at_s < seconds)


def key_of(request: TypedRequest) -> Key:
    """Return the key of a request."""
    return request.session, request.sequence


def pauses_of(trace: Trace) -> set[Key]:
    """Return the requests after which the user waits."""
    return {key_of(request) for session in trace.sessions for request in session.requests if request.is_pause}


def only(trace: Trace, keys: Collection[Key]) -> Trace:
    """Return a trace with some of its requests, without the sessions that have none."""
    found = _with_requests(trace, lambda request: key_of(request) in keys)
    return replace(found, sessions=tuple(each for each in found.sessions if each.requests))


def with_sliding_window(trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as clients send it that cut the text themselves: their window moves with each key."""

    def cut(request: TypedRequest) -> TypedRequest:
        start = max(0, request.end - context.prefix_chars)
        before = request.text.before[start : request.end + _GOES_ON_CHARS]
        text = Text(before, request.text.after[: context.suffix_chars])
        return replace(request, text=text, end=request.end - start)

    sessions = [
        replace(each, opening=cut(each.opening), requests=tuple(map(cut, each.requests))) for each in trace.sessions
    ]
    return replace(trace, sessions=tuple(sessions))


def judge(sessions: int, run: Run, answerable: Collection[Key], promised_share: float = PROMISED_SHARE) -> Trial:
    """Return the trial of a run. Without an answerable pause nothing is broken, so it passes."""
    pauses = [each for each in run.results if each.request.is_pause and key_of(each.request) in answerable]
    in_time = [each for each in pauses if each.ttft_s is not None and each.ttft_s <= WITHIN_S]
    share = len(in_time) / len(pauses) if pauses else 1.0
    lag_ms = percentile([each.lag_s * 1000 for each in run.results], 99)
    figures = {"share": share, "pauses": float(len(pauses)), "lag_ms_p99": lag_ms}
    return Trial(sessions, share >= promised_share, figures)


def crossing(trials: Sequence[Trial]) -> float:
    """Return the number of editors at which the share falls below the promise, between the last two bounds.

    It is interpolated over the logarithm of the number: from the largest number that passed to the smallest one above
    it that failed. 0 if one editor fails; the largest number that passed if none failed.
    """
    passed = max((each for each in trials if each.is_passed), key=lambda each: each.sessions, default=None)
    if passed is None:
        return 0.0
    above = [each for each in trials if not each.is_passed and each.sessions > passed.sessions]
    if not above:
        return float(passed.sessions)
    failed = min(above, key=lambda each: each.sessions)
    over, under = passed.figures["share"] - PROMISED_SHARE, PROMISED_SHARE - failed.figures["share"]
    return float(passed.sessions * (failed.sessions / passed.sessions) ** (over / (over + under)))


async def run_round(
    number: int, names: Sequence[str], before: Mapping[str, Sequence[float]], limits: tuple[int, int], run: RunTrial
) -> Mapping[str, tuple[Trial, ...]]:
    """Search for each contestant's capacity and return the trials.

    The search begins at the first of the `limits` and ends at the second; later rounds begin around the capacities of
    the earlier ones, which `before` has. The contestants take turns trial by trial, in an order that rotates from round
    to round, so that a drift of the machine affects all of them.
    """
    searches = {name: Bisection(_search(limits, before.get(name, ()))) for name in rotated(names, number)}
    while any(search.next_sessions is not None for search in searches.values()):
        for name, search in searches.items():
            if search.next_sessions is not None:
                search.record(await run(name, search.next_sessions))
    return {name: searches[name].capacity().trials for name in names}


def _search(limits: tuple[int, int], capacities: Sequence[float]) -> SearchSettings:
    start, most = limits
    if capacities:
        start = max(1, round(editors(capacities, least=1.0).value))
    return SearchSettings(min(start, most), most, _TOLERANCE, 1, _LATER_GROWTH if capacities else _FIRST_GROWTH)


@dataclass(slots=True)
class AnswerablePauses:
    """The pauses of one trace that a server answers with text, looked up as trials need them."""

    replays: Sequence[Replay]
    """Ask servers, in this order."""
    _asked: set[Key] = field(default_factory=set)
    _found: set[Key] = field(default_factory=set)

    async def of(self, trace: Trace) -> set[Key]:
        """Return the pauses of a part of the trace that one of the servers answers with text."""
        pauses = pauses_of(trace)
        for replay in self.replays:
            if unknown := pauses - self._asked - self._found:
                self._found |= set(await replay(unknown))
        self._asked |= pauses
        return pauses & self._found


async def replay_pauses(target: Target, trace: Trace) -> set[Key]:
    """Ask a target each request of a trace, a few at a time; return those that it answers with text.

    Raises TargetError if a document could not be opened, or a request failed.
    """
    records, _ = await ask_in_turn(target, trace, _CALLERS)
    return {key_of(record.request) for record in records if record.has_text}


def capacities(rounds: Rounds) -> dict[str, list[float]]:
    """Return the editors that each contestant served, by round; the same place is the same trace."""
    return {name: [crossing(each) for each in found] for name, found in rounds.items()}


def editors(found: Sequence[float], least: float = _LEAST_EDITORS) -> Estimate:
    """Return the geometric mean over rounds, with an interval if there are enough rounds."""
    return ratio(found, [1.0] * len(found), least)


def headline(found: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return the figures; a contestant that did not take part has none. "contexts" has the capacities by round.

    The generator's lag is the median over all trials of their 99th percentile.
    """
    figures: dict[str, Any] = {}
    by_context = {context: capacities(rounds) for context, rounds in found.items()}
    for context, served in by_context.items():
        figures[f"editors_{context}"] = editors(served[OURS])
        for name, (own, relative) in _FIGURES.items():
            if name in served:
                figures[own.format(context)] = editors(served[name])
                figures[relative.format(context)] = ratio(served[OURS], served[name], _LEAST_EDITORS)
    trials = [trial for rounds in found.values() for own in rounds.values() for each in own for trial in each]
    lag_ms = percentile([trial.figures["lag_ms_p99"] for trial in trials], 50)
    contexts = {
        context: {name: {"editors": editors(own), "editors_by_round": own} for name, own in served.items()}
        for context, served in by_context.items()
    }
    return figures | {"generator_lag_ms_p99": lag_ms, "contexts": contexts}


def picture(found: Mapping[str, Rounds]) -> str:
    """Return the chart as an SVG file."""
    by_context = [capacities(rounds) for rounds in found.values()]
    estimates = {name: [editors(each[name]) for each in by_context] for name in by_context[0]}
    series = {name: [(each.value, each.low, each.high) for each in own] for name, own in estimates.items()}
    groups = [f"{each.prefix_chars:,} + {each.suffix_chars} characters" for each in CONTEXTS]
    return bars_svg(series, groups, "editors", "Editors whose pauses get their first text in time")


if __name__ == "__main__":
    main()
