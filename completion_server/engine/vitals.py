"""Decides whether an engine hangs, from its open generations, its last output and the CPU time of its processes.

Pure: the caller gives the time with each call.
"""

from completion_server.engine.settings import EngineSettings

WATCHES_PER_TIMEOUT = 50
"""Checks of an engine within `hang_timeout_s`."""

_GAPS_PER_TIMEOUT = 4
"""A gap between two checks counts as this fraction of `hang_timeout_s` at most."""

_STEPS_IN_SILENCE = 3
"""An engine may be silent for this multiple of its longest recent step."""

_RECENT_S = 300.0
"""The longest step is that of the last 5 to 10 minutes."""

_CPU_SAMPLES_PER_TIMEOUT = 8
_MAX_CPU_SAMPLE_S = 1.0
_COMPUTING_CORES = 0.1
"""Processes that use this share of one core or more compute. The share is small because the machine may be busy."""


class WatchedTime:
    """Watched time: a gap between two checks counts for at most `max_gap_s` seconds.

    A process that was stopped or migrated wakes up with its timers due and the engine's outputs unread. The time in
    which it could not read an output says nothing about the engine.
    """

    def __init__(self, max_gap_s: float, now: float) -> None:
        self._max_gap_s = max_gap_s
        self._seconds = 0.0
        self._checked_at = now

    def at(self, now: float) -> float:
        """Return the watched seconds until `now`."""
        return self._seconds + min(now - self._checked_at, self._max_gap_s)

    def check(self, now: float) -> None:
        """Begin a new gap."""
        self._seconds = self.at(now)
        self._checked_at = now


class LongestStep:
    """The longest step of the last minutes."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._now_s = 0.0
        self._before_s = 0.0

    @property
    def seconds(self) -> float:
        """The longest recent step; 0 without steps."""
        return max(self._now_s, self._before_s)

    def add(self, seconds: float, now: float) -> None:
        """Record a step."""
        if now - self._began_at > _RECENT_S:
            self._began_at, self._before_s, self._now_s = now, self._now_s, 0.0
        self._now_s = max(self._now_s, seconds)


class Vitals:
    """The signs of life of one engine."""

    def __init__(self, settings: EngineSettings, now: float) -> None:
        """Start the watch at `now`."""
        self._hang_timeout_s = settings.hang_timeout_s
        self._step_timeout_s = settings.step_timeout_s
        self._heartbeat_s = settings.heartbeat_s
        self._cpu_sample_s = min(_MAX_CPU_SAMPLE_S, settings.hang_timeout_s / _CPU_SAMPLES_PER_TIMEOUT)
        self._time = WatchedTime(settings.hang_timeout_s / _GAPS_PER_TIMEOUT, now)
        self._opened_at: dict[int, float] = {}
        """When each open generation began, the oldest first."""
        self._num_opened = 0
        self._output_at = 0.0
        self._computed_at = 0.0
        """When its processes last computed."""
        self._longest = LongestStep()
        self._cpu_seconds: float | None = None
        """CPU time at the last sample; None without a usable sample."""
        self._sampled_at = 0.0

    def generation_opened(self, now: float) -> int:
        """Record the start of a generation; return its number."""
        self._num_opened += 1
        self._opened_at[self._num_opened] = self._time.at(now)
        return self._num_opened

    def output_received(self, now: float) -> None:
        """Record an output."""
        at = self._time.at(now)
        self._longest.add(self._silent_s(at), at)
        self._output_at = at

    def generation_closed(self, number: int) -> None:
        """Record the end of a generation."""
        del self._opened_at[number]

    def check(self, now: float) -> str:
        """Return why the engine is considered hung, "" if it is not.

        Call it often: a long gap between two calls counts only in part.

        Silence alone is no proof: an engine may be busy with prompts that are all abandoned before their first token.
        So one generation must have waited for all of the time.
        """
        self._time.check(now)
        at = self._time.at(now)
        silent_s = self._silent_s(at)
        if silent_s > self._step_timeout_s:
            return f"no output for {silent_s:.3g} s, more than a step may take"
        resting_s = min(silent_s, at - self._computed_at)
        limit_s = max(self._hang_timeout_s, _STEPS_IN_SILENCE * self._longest.seconds)
        return f"no sign of life for {resting_s:.3g} s" if resting_s > limit_s else ""

    def wants_heartbeat(self, now: float) -> bool:
        """Return whether the engine has been silent for so long that it needs a heartbeat.

        That is sooner with open generations: if all callers give up early, only a heartbeat proves a hang.
        """
        patience_s = min(self._heartbeat_s, self._hang_timeout_s / 4) if self._opened_at else self._heartbeat_s
        return self._heartbeat_s > 0 and self._time.at(now) - self._output_at > patience_s

    def wants_cpu_seconds(self, now: float) -> bool:
        """Return whether the engine has been silent for so long that the CPU time of its processes matters."""
        at = self._time.at(now)
        return self._silent_s(at) >= self._cpu_sample_s and at - self._sampled_at >= self._cpu_sample_s

    def record_cpu_seconds(self, now: float, cpu_seconds: float | None) -> None:
        """Record the CPU time of its processes since their start; None if that does not show whether they compute."""
        at = self._time.at(now)
        before = self._cpu_seconds if self._sampled_at > at - self._silent_s(at) else None  # a sample of this silence
        if before is not None and cpu_seconds is not None:
            cores = (cpu_seconds - before) / (at - self._sampled_at)
            self._computed_at = at if cores >= _COMPUTING_CORES else self._computed_at
        self._cpu_seconds, self._sampled_at = cpu_seconds, at

    def _silent_s(self, at: float) -> float:
        """Return for how long the oldest open generation has waited without an output of any; 0 without one."""
        if not self._opened_at:
            return 0.0
        return at - max(self._output_at, next(iter(self._opened_at.values())))
