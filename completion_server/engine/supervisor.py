"""Keeps one engine running: starts it, warms it up, watches it, and replaces it with back-off when it dies or hangs.

The rooms above use the supervisor as their engine.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from completion_server.core.clock import Clock
from completion_server.core.process import raise_if_cancelled
from completion_server.engine.interface import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineStats,
    EngineStep,
    GenerationRequest,
    Output,
    Sink,
    SpeculationControl,
    SpeculationLookup,
    Work,
    constant_lookup,
)
from completion_server.engine.quarantine import AdmittedPrompt, Quarantine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import RestartBackoff, StartEstimate, StartTimes, progress
from completion_server.engine.vitals import WATCHES_PER_TIMEOUT, Vitals
from completion_server.engine.warmup import warm_up

logger = logging.getLogger(__name__)

_MAX_INTERVAL_S = 0.2
"""An engine that says that it has died is not asked later than this."""


class EngineState(Enum):
    """The states of a supervised engine."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class _WatchedGeneration:
    """A generation of the current engine: tells the watch and the quarantine of what its sink hears."""

    def __init__(self, sink: Sink, clock: Clock, vitals: Vitals, quarantine: Quarantine, entry: AdmittedPrompt) -> None:
        self._sink = sink
        self._clock = clock
        self._vitals = vitals
        self._quarantine = quarantine
        self._entry = entry
        self._number = 0
        self._work: Work | None = None
        self._is_open = True

    def begin(self, engine: Engine, request: GenerationRequest, now: float) -> None:
        """Begin in the engine. Raises what that raises."""
        self._number = self._vitals.generation_opened(now)
        try:
            self._work = engine.submit(request, self)
        except BaseException:
            self._close()
            raise

    def push(self, output: Output) -> None:
        """Take an output of the engine."""
        self._vitals.output_received(self._clock.now())
        self._quarantine.output_received(self._entry)
        if output.finish is not None:
            self._quarantine.last_output_received(self._entry)
            self._close()
        self._sink.push(output)

    def fail(self, error: Exception) -> None:
        """Take the error of the engine."""
        self._close()
        self._sink.fail(error)

    def abort(self) -> None:
        """Stop the work in the engine."""
        work = self._work
        self._close()
        if work is not None:
            work.abort()

    def _close(self) -> None:
        if self._is_open:
            self._is_open, self._work = False, None  # the work refers to this as its sink
            self._vitals.generation_closed(self._number)
            self._quarantine.leave(self._entry)


class SupervisedEngine(Engine):
    """An engine that is restarted after a failure. Generations that were open at the failure get EngineDeadError."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        settings: EngineSettings,
        clock: Clock,
        on_change: Callable[[EngineState], None] = lambda _state: None,
        *,
        start_times: StartTimes | None = None,
    ) -> None:
        """Prepare; `run` does the work. `on_change` is called with every new state.

        `start_times` keeps how long the first start took.
        """
        self._make_engine = make_engine
        self._start_times = start_times or StartTimes(None)
        self._start_key = f"engine: {settings.start_key}"
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._engine = make_engine()
        self._vitals = Vitals(settings, clock.now())
        self._backoff = RestartBackoff(settings)
        self._estimate = StartEstimate(self._start_times.last_s(self._start_key))
        self._quarantine = Quarantine(settings.quarantine_s)
        info = EngineInfo(
            model=settings.model,
            max_model_len=settings.max_model_len or 0,
            draft_model=settings.draft_model,
            num_speculative_tokens=settings.num_speculative_tokens if settings.draft_model else 0,
            max_num_seqs=settings.max_num_seqs,
            speculation_lookup=constant_lookup(0, settings.max_num_seqs),
        )
        self._info = self._with_revisions(info)
        self._speculation = SpeculationControl(self._info, self._set_speculation)
        self._on_step: Callable[[EngineStep], None] = lambda _step: None
        self._past_generated_tokens = self._past_aborted_tokens = 0
        """Of the engines before this one."""
        self._num_heartbeats = 0
        self._watch_interval_s = min(_MAX_INTERVAL_S, settings.hang_timeout_s / WATCHES_PER_TIMEOUT)
        self.state = EngineState.STARTING
        self.failure = ""
        """Why it last failed; "" if it never did."""
        self.num_restarts = 0
        self.start_s: float | None = None
        """Duration of the last start, with the warm-up; None before one has succeeded."""

    @property
    def info(self) -> EngineInfo:
        """The models that were loaded last; before the first start, those of the settings."""
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether it can serve now."""
        return self.state is EngineState.READY

    def remaining_start_s(self) -> float | None:
        """Return the predicted time until an engine is ready; None if there is nothing to predict from."""
        return self._estimate.remaining_s(self._clock.now())

    @property
    def current(self) -> Engine:
        """The engine that runs now; a restart replaces it."""
        return self._engine

    async def start(self) -> None:
        """Start the first engine; `run` then reports that it is ready.

        Raises:
            EngineDeadError: it does not start. The operator must correct that, so there is no second try.

        """
        usual_s = self.remaining_start_s()
        logger.info("loading the models%s", "" if usual_s is None else f"; the last time took {usual_s:.0f} s")
        self._estimate.begin(self._clock.now())
        await self._start_engine()
        self._start_times.record(self._start_key, self.start_s or 0.0)

    async def run(self) -> None:
        """Report that the engine is ready, watch it and replace it when it fails, until cancelled.

        Raises:
            EngineDeadError: no engine started in `engine.max_failed_starts` tries.

        """
        while True:
            ready_at = self._clock.now()
            self._change(EngineState.READY)
            self.failure = await self._watch()
            logger.error("engine failed: %s", self.failure)
            now = self._clock.now()
            self._quarantine.engine_failed(now)
            self._change(EngineState.FAILED)
            await self._replace(served_s=now - ready_at)

    def submit(self, request: GenerationRequest, sink: Sink) -> Work:
        """Begin to generate; see the interface.

        Raises:
            EngineDeadError: the engine is not ready.
            SuspectedPromptError: the engine failed more than once while it computed this prompt.
            UnavailableError: the engine failed while it computed this prompt and others; they are tried one at a time.

        """
        if self.state is not EngineState.READY:
            raise EngineDeadError(f"the engine is {self.state.value}")
        if not self._engine.is_alive:
            raise EngineDeadError("the engine died")
        now = self._clock.now()
        entry = self._quarantine.enter(request.prompt_token_ids, now)
        watched = _WatchedGeneration(sink, self._clock, self._vitals, self._quarantine, entry)
        watched.begin(self._engine, request, now)
        return watched

    def stats(self) -> EngineStats:
        """Return the counters; token counts include those of the engines before a restart."""
        stats = self._engine.stats()
        return replace(
            stats,
            num_generated_tokens=self._past_generated_tokens + stats.num_generated_tokens,
            num_aborted_tokens=self._past_aborted_tokens + stats.num_aborted_tokens,
        )

    @property
    def speculation(self) -> SpeculationControl | None:
        """Changes K of this engine and of those that replace it; None if `info` has a reason why K is locked."""
        return None if self._info.speculation_locked_reason else self._speculation

    def _set_speculation(self, lookup: SpeculationLookup, is_off: bool) -> None:
        """Set K of the engine that runs now, unless it is starting, or K is locked."""
        if (control := self._engine.speculation) is not None:
            control.change(lookup, is_off=is_off)

    def watch_steps(self, on_step: Callable[[EngineStep], None]) -> None:
        """Call `on_step` after every step of any engine, except those of a warm-up."""
        self._on_step = on_step
        if self.state is EngineState.READY:
            self._engine.watch_steps(on_step)

    async def stop(self) -> None:
        """Stop for good."""
        if self.state is not EngineState.STOPPED:
            self._change(EngineState.STOPPED)
        await self._engine.stop()

    async def _start_engine(self) -> None:
        try:
            with progress("loading the models"):
                async with asyncio.timeout(self._settings.start_timeout_s):
                    await self._engine.start()
        except TimeoutError as error:
            msg = f"the engine was not loaded after {self._settings.start_timeout_s:g} s (engine.start_timeout_s)"
            raise EngineDeadError(msg) from error
        self._info = self._with_revisions(self._engine.info)
        if self._settings.warm_up:
            logger.info("the models are loaded; warming up")
            with progress("warming up"):
                await warm_up(self._engine, self._settings.step_timeout_s)
        self._speculation.replaced(self._engine.info)
        self._engine.watch_steps(self._on_step)
        self._vitals = Vitals(self._settings, self._clock.now())
        self.start_s = self._estimate.end(self._clock.now())

    def _with_revisions(self, info: EngineInfo) -> EngineInfo:
        draft_revision = self._settings.draft_revision if info.draft_model else None
        return replace(info, revision=self._settings.revision or "", draft_revision=draft_revision or "")

    async def _watch(self) -> str:
        """Return why the engine failed, once it has."""
        heartbeat: asyncio.Task[None] | None = None
        try:
            while not (failure := self._check()):
                if (heartbeat is None or heartbeat.done()) and self._vitals.wants_heartbeat(self._clock.now()):
                    heartbeat = asyncio.create_task(self._beat())
                await asyncio.sleep(self._watch_interval_s)
            return failure
        finally:
            if heartbeat is not None:
                heartbeat.cancel()
                await asyncio.wait([heartbeat])

    def _check(self) -> str:
        """Return why the engine has failed, "" if it has not."""
        if not self._engine.is_alive:
            return "it died"
        now = self._clock.now()
        if self._vitals.wants_cpu_seconds(now):
            self._vitals.record_cpu_seconds(now, self._engine.cpu_seconds())
        return self._vitals.check(now)

    async def _beat(self) -> None:
        self._num_heartbeats += 1
        request = GenerationRequest(id=f"heartbeat-{self._num_heartbeats}", prompt_token_ids=[1], max_tokens=1)
        vitals = self._vitals
        number = vitals.generation_opened(self._clock.now())
        try:
            with contextlib.suppress(EngineDeadError):  # the watch finds the failure itself
                async for _output in self._engine.generate(request):
                    vitals.output_received(self._clock.now())
                    self._quarantine.output_received()
        finally:
            vitals.generation_closed(number)

    async def _replace(self, served_s: float) -> None:
        """Stop the failed engine, which served for `served_s`, and start engines until one runs."""
        for num_starts in itertools.count(1):
            wait_s = self._backoff.next_wait_s(served_s)
            served_s = 0.0
            self.num_restarts += 1
            self._estimate.begin(self._clock.now() + wait_s)
            try:
                await self._engine.stop()
                logger.info("the next engine starts in %g s", wait_s)
                self._estimate.begin(self._clock.now() + wait_s)
                await asyncio.sleep(wait_s)
                self._take_engine(self._make_engine())
                await self._start_engine()
            except Exception as error:  # the next try may succeed after any error
                self.failure = str(error) or repr(error)
                logger.error("engine did not restart: %s", self.failure)
                self._change(EngineState.FAILED)
                raise_if_cancelled()
                if num_starts == self._settings.max_failed_starts:
                    msg = f"no engine started in {num_starts} tries (engine.max_failed_starts): {self.failure}"
                    raise EngineDeadError(msg) from error
            else:
                logger.warning("engine restarted (restart %d)", self.num_restarts)
                return

    def _take_engine(self, engine: Engine) -> None:
        """Replace the engine, and keep the token counts of the old one."""
        past = self.stats()
        self._past_generated_tokens, self._past_aborted_tokens = past.num_generated_tokens, past.num_aborted_tokens
        self._engine = engine
        self._change(EngineState.STARTING)

    def _change(self, state: EngineState) -> None:
        self.state = state
        self._on_change(state)
