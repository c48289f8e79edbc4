"""Runs the trials of the capacity benchmark on the servers, one server at a time."""

import asyncio
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console

from loadtest.bench.capacity.answerable import AnswerablePauses, Replay, replay_pauses
from loadtest.bench.capacity.contestants import CapacityContestant
from loadtest.bench.capacity.report import Findings
from loadtest.bench.capacity.rounds import Range, run_round
from loadtest.bench.capacity.texts import CONTEXTS, ContextSize, Key, TrialLength, first_sessions, requests_like
from loadtest.bench.capacity.trial import SHARE
from loadtest.bench.common.contest import Turns
from loadtest.driving.driver import Run, drive
from loadtest.search.capacity import Trial
from loadtest.targets import TargetError
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import Trace, make_trace

_WARM_UP_SESSIONS, _WARM_UP_S = 8, 4.0
_PAUSES = 40
"""Pauses that a trial should have."""
_LONGEST = 3
"""A trial with few editors takes up to this multiple of the shortest one."""


@contextmanager
def named(contestant: str) -> Iterator[None]:
    """Put the contestant's name in front of what it could not do.

    Raises:
        TargetError: it could not do something.

    """
    try:
        yield
    except TargetError as error:
        msg = f"{contestant}: {error}"
        raise TargetError(msg) from error


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How trials are run."""

    trial_s: float
    """Length of a trial with many editors."""
    limits: Range
    seed: int


@dataclass(slots=True)
class TrialRunner:
    """Runs the trials on the servers."""

    contestants: Mapping[str, CapacityContestant]
    turns: Turns
    settings: RunnerSettings
    console: Console
    num_runs: int = field(default=0, init=False)

    async def warm_up(self) -> None:
        """Drive each contestant a little."""
        for context in CONTEXTS:
            trace = await self._trace("warm-up", context, _WARM_UP_SESSIONS, _WARM_UP_S)
            for each in self.contestants.values():
                await self._drive(each, each.sends(trace, context))

    async def round(self, number: int, context: ContextSize, found: Findings) -> None:
        """Add a round's trials to what was found."""
        length, names = self._length(), list(self.contestants)
        trace = await self._trace(str(number), context, self.settings.limits.most, length.most_s)
        sent = {name: await asyncio.to_thread(each.sends, trace, context) for name, each in self.contestants.items()}
        pauses = AnswerablePauses([self._replay(name, sent[name]) for name in names])

        async def run_trial(name: str, sessions: int) -> Trial:
            seconds = length.seconds(sessions)
            answerable = await pauses.of(first_sessions(trace, sessions, seconds))
            run = await self._drive(self.contestants[name], first_sessions(sent[name], sessions, seconds))
            trial = found.promise.judge(sessions, run, answerable)
            self._say(number, context, name, trial)
            return trial

        gc.collect()
        gc.freeze()  # garbage collections of the prepared traces would delay the generator
        found.add(await run_round(number, names, found.capacities, self.settings.limits, run_trial))
        gc.unfreeze()

    async def _drive(self, contestant: CapacityContestant, trace: Trace) -> Run:
        await self.turns.give(contestant.process)
        self.num_runs += 1
        async with contestant.connect(str(self.num_runs)) as target:
            with named(contestant.name):
                return await drive(target, trace)

    def _replay(self, name: str, sent: Trace) -> Replay:
        """Return the replay of a contestant's own requests for some pauses of a trace."""

        async def replay(pauses: Trace) -> set[Key]:
            await self.turns.give(self.contestants[name].process)
            self.num_runs += 1
            async with self.contestants[name].connect(str(self.num_runs)) as target:
                with named(name):
                    return await replay_pauses(target, requests_like(pauses, sent))

        return replay

    async def _trace(self, name: str, context: ContextSize, sessions: int, seconds: float) -> Trace:
        documents = {"prefix_chars": context.prefix_chars, "suffix_chars": context.suffix_chars}
        scenario = Scenario.of({"name": "capacity", "documents": documents})
        seed = f"{self.settings.seed}/{context.name}/{name}"
        return await asyncio.to_thread(make_trace, scenario.scaled(sessions=sessions, duration_s=seconds, seed=seed))

    def _length(self) -> TrialLength:
        seconds, typing = self.settings.trial_s, Scenario.of({"name": "capacity"}).typing
        per_s = typing.model.keys_per_s * typing.model.share_above(typing.pause_ms / 1000)
        return TrialLength(seconds, _LONGEST * seconds, _PAUSES, per_s)

    def _say(self, number: int, context: ContextSize, name: str, trial: Trial) -> None:
        share, pauses = trial.figures[SHARE], trial.figures["pauses"]
        self.console.print(
            f"round {number + 1}, {context.name}: {name}, {trial.sessions} editors: "
            f"{share:.0%} of {pauses:.0f} pauses in time",
            highlight=False,
        )
