"""The draft lengths of a running server: what operators set, what the controller makes of it, and what came of it all.

Everything happens when an operator asks or a step ends; there is no task here and nothing waits.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from completion_server.core.clock import Clock
from completion_server.engine.interface import Step
from completion_server.engine.settings import SpeculationSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.speculation.controller import Controller
from completion_server.speculation.figures import Figures, SlidingFigures
from completion_server.speculation.schedule import Schedule, ScheduleError, SpeculationFixedError, parse_schedule

logger = logging.getLogger(__name__)

CONFIGURED = "configuration"
"""Who set what the server began with."""


class Mode(Enum):
    """Who chooses K."""

    FIXED = "fixed"
    """An operator chose one K for all batch sizes."""
    SCHEDULE = "schedule"
    """An operator chose K by batch size."""
    AUTO = "auto"
    """The server chooses what pays."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The draft lengths in force, and where they come from."""

    schedule: Schedule
    """K by batch size; in mode AUTO without the short bursts in which the server tries another."""
    mode: Mode
    table: Schedule
    """What the operator set last; in mode AUTO what the server falls back to."""
    ceiling: int
    """Draft tokens at most, with which the engine was started."""
    since_unix_ms: int
    """When the schedule came into force."""
    by: str
    """Who set the mode."""
    fixed_because: str
    """Why nothing of it can be changed; "" where it can."""


class LiveSpeculation:
    """Owns the draft lengths of a supervised engine."""

    def __init__(
        self, engine: SupervisedEngine, settings: SpeculationSettings, clock: Clock, unix_time_s: Callable[[], float]
    ) -> None:
        """Watch the engine's steps; `begin` puts something in force."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._unix_time_s = unix_time_s
        self._figures = SlidingFigures(clock)
        self._controller: Controller | None = None
        self._chosen = Schedule.fixed(0, 1)
        """What the controller last held best."""
        self._mode = Mode.FIXED
        self._table = Schedule.fixed(0, 1)
        self._by = CONFIGURED
        self._since_s = unix_time_s()
        self._has_begun = False
        engine.watch_steps(self._hear)

    def begin(self) -> None:
        """Put what is configured in force, once the engine has started."""
        self._has_begun = True
        self._figures = SlidingFigures(self._clock)  # loading the models is no part of them
        self._table = self._engine.speculation
        self._mode = Mode.FIXED if len(self._table.rows) == 1 else Mode.SCHEDULE
        self._since_s = self._unix_time_s()
        info, mode = self._engine.info, Mode(self._settings.mode)
        if info.speculation_fixed_because:
            if info.draft_model or mode is not Mode.FIXED:
                logger.warning("draft lengths can't be changed while it runs: %s", info.speculation_fixed_because)
            return
        try:
            if self._settings.schedule:
                self.set_schedule(self._settings.schedule, CONFIGURED)
            if mode is Mode.AUTO:
                self.set_auto(CONFIGURED)
        except ScheduleError as error:  # the engine was started with fewer than the configuration says
            logger.warning("the configured draft lengths are not in force: %s", error)

    @property
    def in_force(self) -> InForce:
        """What is in force."""
        info = self._engine.info
        return InForce(
            schedule=self._controller.chosen if self._controller else self._engine.speculation,
            mode=self._mode,
            table=self._table,
            ceiling=info.num_speculative_tokens,
            since_unix_ms=int(self._since_s * 1000),
            by=self._by,
            fixed_because=info.speculation_fixed_because,
        )

    def figures(self) -> Figures:
        """Return what speculation came to over the last minutes."""
        return self._figures.read()

    def set_fixed(self, num_draft_tokens: int, by: str) -> None:
        """Put one K in force for all batch sizes.

        Raises:
            ScheduleError: it is over the ceiling.
            SpeculationFixedError: this engine can't change it.

        """
        self._refuse_if_fixed()
        self._take(Mode.FIXED, Schedule.fixed(num_draft_tokens, self._engine.info.max_num_seqs), by)

    def set_schedule(self, rows: Iterable[Sequence[int]], by: str) -> None:
        """Put rows of [first, last, K] in force.

        Raises:
            ScheduleError: they are no schedule, or over the ceiling; what was in force stays.
            SpeculationFixedError: this engine can't change it.

        """
        self._refuse_if_fixed()
        self._take(Mode.SCHEDULE, parse_schedule(rows, self._engine.info.num_speculative_tokens), by)

    def set_auto(self, by: str, rows: Iterable[Sequence[int]] = ()) -> None:
        """Let the server choose, beginning with `rows`, or with what is set now where there are none.

        Raises:
            ScheduleError: they are no schedule, or over the ceiling; what was in force stays.
            SpeculationFixedError: this engine can't change it.

        """
        self._refuse_if_fixed()
        given = list(rows)
        info = self._engine.info
        table = parse_schedule(given, info.num_speculative_tokens) if given else self._table
        self._take(Mode.AUTO, table, by)
        self._controller = Controller(table, info.num_speculative_tokens, info.max_num_seqs)
        self._chosen = self._controller.chosen

    def _take(self, mode: Mode, table: Schedule, by: str) -> None:
        """Put an operator's table in force."""
        self._engine.set_speculation(table)
        self._since_s = self._unix_time_s()
        self._mode, self._table, self._by, self._controller = mode, table, by, None
        logger.info("draft lengths set to %s %s by %s", mode.value, table.as_lists(), by)

    def _refuse_if_fixed(self) -> None:
        """Say that nothing can be changed before saying what is wrong with a schedule."""
        if not self._has_begun:
            msg = "the engine is starting: its ceiling is not known yet"
            raise SpeculationFixedError(msg)
        if because := self._engine.info.speculation_fixed_because:
            raise SpeculationFixedError(because)

    def _hear(self, step: Step) -> None:
        self._figures.add(step)
        if self._controller is None:
            return
        try:
            schedule = self._controller.hear(step, self._clock.now())
            if schedule is not None:
                self._engine.set_speculation(schedule)
            if self._controller.chosen != self._chosen:
                self._chosen = self._controller.chosen
                self._since_s = self._unix_time_s()
                logger.info("draft lengths chosen: %s", self._chosen.as_lists())
        except Exception:
            # It is the engine that tells of its steps: an error here would be taken for one of its own.
            logger.exception("the draft lengths are no longer chosen by the server")
            self._controller, self._mode = None, Mode.SCHEDULE
            with contextlib.suppress(SpeculationFixedError):  # an engine that came back without live lengths
                self._take(Mode.SCHEDULE, self._table, self._by)
