"""Runs the trials of the capacity benchmark on the servers, one server at a time."""

import asyncio
import gc
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from loadtest.bench.capacity.answerable import AnswerablePauses, Replay, replay_pauses
from loadtest.bench.capacity.contestants import OURS_UNCACHED
from loadtest.bench.capacity.report import Findings
from loadtest.bench.capacity.rounds import Range, run_round
from loadtest.bench.capacity.trials import (
    CONTEXTS,
    SHARE,
    ContextSize,
    Key,
    TrialLength,
    first_sessions,
    requests_like,
    with_sliding_window,
)
from loadtest.bench.runner.editing import EditingContestant, EditingRuns
from loadtest.driving.driver import Run, drive
from loadtest.search import Trial
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace

_WARM_UP_SESSIONS, _WARM_UP_S = 8, 4.0
_PAUSES = 40
"""Pauses that a trial should have."""
_LONGEST = 3
"""A trial with few editors takes up to this multiple of the shortest one."""


def _sent(contestant: EditingContestant, trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as the clients of a contestant send it."""
    return contestant.sends(with_sliding_window(trace, context) if contestant.has_window else trace)


@dataclass(slots=True)
class TrialRunner:
    """Runs the trials on the servers."""

    contestants: Mapping[str, EditingContestant]
    runs: EditingRuns
    console: Console
    trial_s: float
    """Length of a trial with many editors."""
    limits: Range
    seed: int

    async def warm_up(self) -> None:
        """Drive each contestant a little."""
        for context in CONTEXTS:
            trace = await self._trace("warm-up", context, _WARM_UP_SESSIONS, _WARM_UP_S)
            for each in self.contestants.values():
                await self._drive(each, _sent(each, trace, context))

    async def round(self, number: int, context: ContextSize, found: Findings) -> None:
        """Add a round's trials to what was found."""
        length, names = self._length(), list(self.contestants)
        trace = await self._trace(str(number), context, self.limits.most, length.most_s)
        sent = {name: await asyncio.to_thread(_sent, each, trace, context) for name, each in self.contestants.items()}
        # The completion cache changes no answer, so asking this server again without it would only take time.
        asked = [name for name in names if name != OURS_UNCACHED]
        pauses = AnswerablePauses([self._replay(name, sent[name]) for name in asked])

        async def run_trial(name: str, sessions: int) -> Trial:
            seconds = length.seconds(sessions)
            answerable = await pauses.of(first_sessions(trace, sessions, seconds))
            run = await self._drive(self.contestants[name], first_sessions(sent[name], sessions, seconds))
            trial = found.promise.judge(sessions, run, answerable)
            self._say(number, context, name, trial)
            return trial

        gc.collect()
        gc.freeze()  # garbage collections of the prepared traces would delay the generator
        found.add(await run_round(number, names, found.capacities, self.limits, run_trial))
        gc.unfreeze()

    async def _drive(self, contestant: EditingContestant, trace: Trace) -> Run:
        async with self.runs.of(contestant) as target:
            return await drive(target, trace)

    def _replay(self, name: str, sent: Trace) -> Replay:
        """Return the replay of a contestant's own requests for some pauses of a trace."""

        async def replay(pauses: Trace) -> set[Key]:
            async with self.runs.of(self.contestants[name]) as target:
                return await replay_pauses(target, requests_like(pauses, sent))

        return replay

    async def _trace(self, name: str, context: ContextSize, sessions: int, seconds: float) -> Trace:
        documents = {"prefix_chars": context.prefix_chars, "suffix_chars": context.suffix_chars}
        scenario = Scenario.of({"name": "capacity", "documents": documents})
        seed = f"{self.seed}/{context.name}/{name}"
        return await asyncio.to_thread(make_trace, scenario.scaled(sessions=sessions, duration_s=seconds, seed=seed))

    def _length(self) -> TrialLength:
        seconds, typing = self.trial_s, Scenario.of({"name": "capacity"}).typing
        per_s = typing.model.keys_per_s * typing.model.share_above(typing.pause_ms / 1000)
        return TrialLength(seconds, _LONGEST * seconds, _PAUSES, per_s)

    def _say(self, number: int, context: ContextSize, name: str, trial: Trial) -> None:
        share, pauses = trial.figures[SHARE], trial.figures["pauses"]
        self.console.print(
            f"round {number + 1}, {context.name}: {name}, {trial.sessions} editors: "
            f"{share:.0%} of {pauses:.0f} pauses in time",
            highlight=False,
        )
