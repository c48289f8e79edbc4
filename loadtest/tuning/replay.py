"""Closed-loop completion traffic: each caller sends its next request, one key on, as soon as it has its answer.

The scenario determines the texts and the time of each next key. A block lasts for a set time, and until there are half
as many answers as callers; then all callers finish their current request. Blocks share only their texts: each block has
new users, whose first requests compute their documents before the block's time begins and do not count.
"""

import asyncio
import itertools
from dataclasses import dataclass, field, replace

from loadtest.targets import NO_CREDENTIALS, ClientSettings, Credentials, Editor, TargetError, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import WHOLE, Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace, Trigger, TypedSession

_TYPED_S = 40.0
"""Typing prepared for each caller, some 100 keys. A caller that reaches the end starts again."""
_SPARE = 4
_SHED_PAUSE_S = 0.1


class Replay:
    """The callers of one server."""

    def __init__(self, address: str, scenario: Scenario, credentials: Credentials = NO_CREDENTIALS) -> None:
        """Call the server at HOST:PORT. Requests refuse its completion cache, and are not cancelled at the next key."""
        spec = TargetSpec(address, "grpc+complete", (address,), {"connections": "16"}, credentials=credentials)
        editor = scenario.editor
        settings = ClientSettings(editor.max_tokens, editor.mode, cancels_at_key=False, use_completion_cache=False)
        self._target = GrpcTarget(spec, settings)

    async def run(self, traffic: Trace, seconds: float) -> "ReplayedBlock":
        """Run a block with a caller for each session. Raises TargetError if a request failed or found no server."""
        async with self._target.editors(traffic) as editors:
            block = ReplayedBlock(seconds, len(editors))
            try:
                async with asyncio.TaskGroup() as group:
                    for session, editor in zip(traffic.sessions, editors, strict=True):
                        group.create_task(block.call(session, editor))
            except* TargetError as failures:
                raise failures.exceptions[0] from None
        return block

    async def close(self) -> None:
        """Close the connections."""
        await self._target.__aexit__(None, None, None)


async def traffic_of(scenario: Scenario, concurrency: int, seed: str) -> Trace:
    """Return the trace of `concurrency` callers.

    Raises DocumentsError if there is not enough text to type; TargetError if too few of the sessions ask anything.
    """
    # Some of a scenario's sessions may never type.
    wanted = scenario.scaled(sessions=_SPARE * concurrency, seed=f"{scenario.seed}/{seed}", duration_s=_TYPED_S)
    made = await asyncio.to_thread(make_trace, wanted)
    asking = [each for each in made.sessions if each.requests]
    if len(asking) < concurrency:
        raise TargetError(f"trace {scenario.name}: {len(asking)} sessions ask anything, {concurrency} are needed")
    return replace(made, sessions=tuple(asking[:concurrency]), events=())


@dataclass(slots=True)
class ReplayedBlock:
    """The callers of a block, which lasts until the time is up and half of the callers could have an answer."""

    seconds: float
    num_callers: int
    answers: list[Record] = field(default_factory=list)
    window_s: float = 0.0
    """Time during which all callers were active; 0 until the block is over."""
    _clock: RunClock = field(default_factory=RunClock)
    _num_primed: int = 0
    _has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, session: TypedSession, editor: Editor) -> None:
        """Send the requests of a session, one after another. Raises TargetError if one failed."""
        for number, request in enumerate(itertools.cycle(session.requests)):
            # Each request must have a waiting user, and sequence numbers must rise when a caller starts again.
            asked = replace(request, trigger=Trigger.EXPLICIT, sequence=session.requests[0].sequence + number)
            record = Record(asked, self._clock)
            editor.send_nowait(record)
            await record.wait_ended()
            if record.outcome not in {*WHOLE, Outcome.SHED}:
                raise TargetError(f"a request failed: {record.outcome.value} {record.error}".strip())
            if number == 0:
                await self._begin_together()
                continue
            self.answers.append(record)
            now_s = self._clock.now_s()
            if not self.window_s and now_s >= self.seconds and 2 * len(self.answers) >= self.num_callers:
                self.window_s = now_s
            if self.window_s:
                return
            if record.outcome is Outcome.SHED:
                await asyncio.sleep(_SHED_PAUSE_S)

    async def _begin_together(self) -> None:
        """Begin the block's time as soon as all callers have had their first answer."""
        self._num_primed += 1
        if self._num_primed == self.num_callers:
            self._clock = RunClock()
            self._has_begun.set()
        await self._has_begun.wait()
