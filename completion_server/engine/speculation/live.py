"""The number of speculative tokens (K) of a running server: the operator's setting, the controller's choice, figures.

Everything happens in calls from operators and from the engine's steps: there is no task, and no call waits.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from completion_server.core.clock import Clock
from completion_server.engine.interface import NGRAM, EngineStep, SpeculationControl
from completion_server.engine.settings import SpeculationSettings
from completion_server.engine.speculation.controller import Controller, DraftRest
from completion_server.engine.speculation.estimates import Estimates
from completion_server.engine.speculation.figures import FiguresWindow, SpeculationFigures, SpeculationTotals
from completion_server.engine.speculation.schedule import ScheduleError, SpeculationSchedule, parse_schedule
from completion_server.engine.speculation.trial import StartChoice
from completion_server.engine.supervisor import SupervisedEngine

logger = logging.getLogger(__name__)

CONFIGURED = "configuration"
"""Stands for the operator's name in the settings with which the server started."""


class SpeculationLockedError(Exception):
    """K can't be changed on this engine while it runs; the message has the reason."""


class SpeculationMode(Enum):
    """The ways to choose K."""

    FIXED = "fixed"
    """An operator chose one K for all batch sizes."""
    SCHEDULE = "schedule"
    """An operator chose K by batch size."""
    AUTO = "auto"
    """The server chooses the K with the highest goodput."""


@dataclass(frozen=True, slots=True)
class ActiveSpeculation:
    """The active schedule and its origin."""

    schedule: SpeculationSchedule
    """K by batch size; in mode AUTO without probes."""
    mode: SpeculationMode
    operator_schedule: SpeculationSchedule
    """The operator's last setting; in mode AUTO the fallback of the controller."""
    max_num_speculative_tokens: int
    """The largest K, with which the engine was started."""
    since_unix_ms: int
    """When the schedule became active."""
    set_by: str
    """The name of the operator with the last change."""
    locked_reason: str
    """Why nothing can be changed; "" if it can."""

    def __str__(self) -> str:
        """Return it as the audit log has it."""
        return f"{self.mode.value} {self.schedule.as_lists()}"


class LiveSpeculation:
    """Owns the K of a supervised engine."""

    def __init__(
        self, engine: SupervisedEngine, settings: SpeculationSettings, clock: Clock, unix_time_s: Callable[[], float]
    ) -> None:
        """Watch the engine's steps; `begin` applies the settings."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._unix_time_s = unix_time_s
        self._figures = FiguresWindow(clock)
        self.totals = SpeculationTotals()
        """All steps since the start of the server."""
        self._controller: Controller | None = None
        self._estimates: Estimates | None = None
        """Made at the first step, which is the trial's if there is one."""
        self._rest = DraftRest()
        self._operator_schedule = SpeculationSchedule.fixed(0, engine.info.max_num_seqs)
        self._chosen = self._operator_schedule
        """The controller's last choice."""
        self._mode = SpeculationMode.FIXED
        self._set_by = CONFIGURED
        self._since_s = unix_time_s()
        self._has_begun = False
        engine.watch_steps(self._observe)

    def begin(self, start: StartChoice | None = None) -> None:
        """Apply the settings, after the engine has started; in mode AUTO begin with what a trial has chosen."""
        self._has_begun = True
        self._figures = FiguresWindow(self._clock)  # the time before the start does not count
        info, mode = self._engine.info, SpeculationMode(self._settings.mode)
        self._operator_schedule = SpeculationSchedule.of_lookup(info.speculation_lookup)
        self._mode = SpeculationMode.FIXED if len(self._operator_schedule.rows) == 1 else SpeculationMode.SCHEDULE
        self._since_s = self._unix_time_s()
        if info.speculation_locked_reason:
            if info.draft_model or self._settings.schedule:
                reason = info.speculation_locked_reason
                logger.warning("the number of speculative tokens can't be changed while it runs: %s", reason)
            return
        try:
            if self._settings.schedule:
                self.set_schedule(self._settings.schedule, CONFIGURED)
            if mode is SpeculationMode.AUTO:
                self._begin_auto(start)
        except ScheduleError as error:  # the engine was started with a smaller maximum than the settings have
            logger.warning("the configured speculation schedule is not active: %s", error)

    def _begin_auto(self, start: StartChoice | None) -> None:
        if start is None:
            self.set_auto(CONFIGURED)
            return
        if self._estimates is not None:
            self._estimates.calibrate(start.log_gains)
        self.set_auto(f"{CONFIGURED}, trial at start: {start.reason}", start.rows)
        if start.is_off:
            self._rest.switch_off(self._clock.now())
            self._control().switch_off()

    @property
    def active(self) -> ActiveSpeculation:
        """The active schedule and its origin."""
        info = self._engine.info
        return ActiveSpeculation(
            schedule=self._active_schedule(),
            mode=self._mode,
            operator_schedule=self._operator_schedule,
            max_num_speculative_tokens=info.num_speculative_tokens,
            since_unix_ms=int(self._since_s * 1000),
            set_by=self._set_by,
            locked_reason=info.speculation_locked_reason,
        )

    def num_speculative_tokens(self, num_seqs: int) -> int:
        """Return the K of a step with `num_seqs` generations: also that of a probe, and 0 while drafts are off."""
        control, info = self._engine.speculation, self._engine.info
        lookup = info.speculation_lookup if control is None else control.lookup
        return lookup[min(max(1, num_seqs), len(lookup) - 1)] if lookup else 0

    def figures(self) -> SpeculationFigures:
        """Return the figures of the last minutes."""
        return self._figures.read()

    def set_fixed(self, num_speculative_tokens: int, by: str) -> None:
        """Set one K for all batch sizes. Raises as `set_schedule` does."""
        rows = [[1, max(1, self._engine.info.max_num_seqs), num_speculative_tokens]]
        self._set(SpeculationMode.FIXED, self._parse(rows), by)

    def set_schedule(self, rows: Iterable[Sequence[int]], by: str) -> None:
        """Set rows of [first, last, K].

        Raises:
            ScheduleError: they are no schedule, or over the engine's maximum; the active schedule stays.
            SpeculationLockedError: this engine can't change it.

        """
        self._set(SpeculationMode.SCHEDULE, self._parse(rows), by)

    def set_auto(self, by: str, rows: Iterable[Sequence[int]] = ()) -> None:
        """Let the server choose, beginning with `rows`, or with the operator's current schedule without rows.

        Raises as `set_schedule` does.
        """
        schedule = self._parse(list(rows) or self._operator_schedule.as_lists())
        self._set(SpeculationMode.AUTO, schedule, by)
        self._rest = DraftRest()
        self._chosen = schedule
        if (
            self._engine.info.draft_model != NGRAM
        ):  # the controller's estimates take every generation to have a draft in each step
            self._begin_control(schedule)

    def _active_schedule(self) -> SpeculationSchedule:
        if self._controller is not None:
            return self._controller.chosen
        info = self._engine.info
        if info.speculation_locked_reason:  # such an engine may have replaced one that was not locked
            return SpeculationSchedule.of_lookup(info.speculation_lookup)
        return self._operator_schedule

    def _set(self, mode: SpeculationMode, schedule: SpeculationSchedule, by: str) -> None:
        """Make an operator's schedule active. K = 0 for all batch sizes switches drafts off, unless K may rise."""
        if schedule.largest or mode is SpeculationMode.AUTO:
            self._apply(schedule)
        else:
            self._control().switch_off()
        self._since_s = self._unix_time_s()
        self._mode, self._operator_schedule, self._set_by, self._controller = mode, schedule, by, None
        logger.info("speculation set to %s %s by %s", mode.value, schedule.as_lists(), by)

    def _begin_control(self, schedule: SpeculationSchedule) -> None:
        info = self._engine.info
        self._controller = Controller(schedule, info.num_speculative_tokens, info.max_num_seqs, self._estimates)
        self._chosen = self._controller.chosen

    def _parse(self, rows: Iterable[Sequence[int]]) -> SpeculationSchedule:
        """Return the schedule of rows; a locked engine refuses each of them before it is checked."""
        if not self._has_begun:
            msg = "the engine is starting: its largest number of speculative tokens is not known yet"
            raise SpeculationLockedError(msg)
        if reason := self._engine.info.speculation_locked_reason:
            raise SpeculationLockedError(reason)
        return parse_schedule(rows, self._engine.info.num_speculative_tokens)

    def _apply(self, schedule: SpeculationSchedule) -> None:
        self._control().set_lookup(schedule.lookup(self._engine.info.max_num_seqs))

    def _control(self) -> SpeculationControl:
        control = self._engine.speculation
        if control is None:
            raise SpeculationLockedError(self._engine.info.speculation_locked_reason)
        return control

    def _observe(self, step: EngineStep) -> None:
        self._figures.add(step)
        self.totals.add(step)
        if self._estimates is None:
            info = self._engine.info
            self._estimates = Estimates(info.num_speculative_tokens, info.max_num_seqs)
        if self._controller is None:
            self._estimates.add(step, self._clock.now())
            return
        try:
            self._choose(step, self._controller, self._clock.now())
        except Exception:
            # The engine calls this method: an error here would be taken for one of the engine's.
            logger.exception("the number of speculative tokens is no longer chosen by the server")
            self._controller, self._mode = None, SpeculationMode.SCHEDULE
            with contextlib.suppress(SpeculationLockedError):  # K may be locked on an engine after a restart
                self._set(SpeculationMode.SCHEDULE, self._operator_schedule, self._set_by)

    def _choose(self, step: EngineStep, controller: Controller, now: float) -> None:
        """Let the controller observe a step, unless drafts are switched off for a time."""
        if not self._rest.is_off:
            schedule = controller.observe(step, now)
            if schedule is not None:
                self._apply(schedule)
            if controller.chosen != self._chosen:
                self._chosen = controller.chosen
                self._since_s = self._unix_time_s()
                logger.info("speculation schedule chosen: %s", self._chosen.as_lists())
        if not self._rest.observe(self._chosen.largest, now):
            return
        if self._rest.is_off:
            self._control().switch_off()
        else:
            self._begin_control(self._chosen)
            self._apply(self._chosen)
        logger.info("drafts switched %s", "off: they do not pay" if self._rest.is_off else "on, to see if they pay")
