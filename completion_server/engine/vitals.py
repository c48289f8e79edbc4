"""Decides whether an engine hangs: from what it owes, when its last output came, and whether its processes compute.

Pure: the caller gives the time with each call.
"""

from completion_server.engine.settings import EngineSettings

WATCHES_PER_TIMEOUT = 50
"""How often an engine is looked at within `hang_timeout_s`."""

_GAPS_PER_TIMEOUT = 4
"""A gap between two looks counts as this fraction of `hang_timeout_s` at most."""

_STEPS_IN_SILENCE = 3
"""An engine may be silent for this many times its longest recent step."""

_RECENT_S = 300.0
"""The longest step is that of the last 5 to 10 minutes."""

_CPU_SAMPLES_PER_TIMEOUT = 8
_MAX_CPU_SAMPLE_S = 1.0
_COMPUTING_CORES = 0.1
"""Processes that use this share of one core or more compute. They may get little of a busy machine."""


class WatchedTime:
    """Time as the watch has seen it pass: a gap between two looks counts for at most `max_gap_s` seconds.

    A process that was stopped or migrated wakes up with its timers due and the engine's outputs still unread. Time in
    which nobody could have read an output says nothing about the engine.
    """

    def __init__(self, max_gap_s: float, now: float) -> None:
        self._max_gap_s = max_gap_s
        self._seconds = 0.0
        self._looked_at = now

    def at(self, now: float) -> float:
        """Return the watched seconds until `now`."""
        return self._seconds + min(now - self._looked_at, self._max_gap_s)

    def look(self, now: float) -> None:
        """Begin a new gap."""
        self._seconds = self.at(now)
        self._looked_at = now


class LongestStep:
    """The longest of the steps of the last minutes, in seconds."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._now_s = 0.0
        self._before_s = 0.0

    @property
    def seconds(self) -> float:
        """The longest recent step; 0 if there was none."""
        return max(self._now_s, self._before_s)

    def add(self, seconds: float, now: float) -> None:
        """Note a step."""
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
        self._heard_at = 0.0
        self._computed_at = 0.0
        """When its processes were last seen to compute."""
        self._longest = LongestStep()
        self._cpu_seconds: float | None = None
        """CPU time at the last sample; None if no sample is of use."""
        self._sampled_at = 0.0

    def opened(self, now: float) -> int:
        """Note that a generation began; return its number."""
        self._num_opened += 1
        self._opened_at[self._num_opened] = self._time.at(now)
        return self._num_opened

    def heard(self, now: float) -> None:
        """Note an output."""
        at = self._time.at(now)
        self._longest.add(self._silent_s(at), at)
        self._heard_at = at

    def closed(self, number: int) -> None:
        """Note that a generation ended."""
        del self._opened_at[number]

    def look(self, now: float) -> str:
        """Return how the engine hangs, "" if it does not. To be called often: time between two late calls counts less.

        Silence alone is no proof: an engine may be busy with prompts that are all given up before their first token.
        So one generation must have waited for all of the time.
        """
        self._time.look(now)
        at = self._time.at(now)
        silent_s = self._silent_s(at)
        if silent_s > self._step_timeout_s:
            return f"no output for {silent_s:.3g} s, more than a step may take (engine.step_timeout_s)"
        resting_s = min(silent_s, at - self._computed_at)
        limit_s = max(self._hang_timeout_s, _STEPS_IN_SILENCE * self._longest.seconds)
        return f"no sign of life for {resting_s:.3g} s" if resting_s > limit_s else ""

    def wants_heartbeat(self, now: float) -> bool:
        """Return whether it has been silent for so long that it should be asked for a token.

        Sooner if it owes an output: if all callers give up in time, only the heartbeat proves a hang.
        """
        patience_s = min(self._heartbeat_s, self._hang_timeout_s / 4) if self._opened_at else self._heartbeat_s
        return self._heartbeat_s > 0 and self._time.at(now) - self._heard_at > patience_s

    def wants_cpu_seconds(self, now: float) -> bool:
        """Return whether it has been silent for so long that it matters whether its processes compute."""
        at = self._time.at(now)
        return self._silent_s(at) >= self._cpu_sample_s and at - self._sampled_at >= self._cpu_sample_s

    def note_cpu_seconds(self, now: float, cpu_seconds: float | None) -> None:
        """Note how much CPU time its processes have used since they began; None if that says nothing."""
        at = self._time.at(now)
        before = self._cpu_seconds if self._sampled_at > at - self._silent_s(at) else None  # of this silence
        if before is not None and cpu_seconds is not None:
            cores = (cpu_seconds - before) / (at - self._sampled_at)
            self._computed_at = at if cores >= _COMPUTING_CORES else self._computed_at
        self._cpu_seconds, self._sampled_at = cpu_seconds, at

    def _silent_s(self, at: float) -> float:
        """Return for how long one generation has waited without an output of any; 0 if nothing is owed."""
        if not self._opened_at:
            return 0.0
        return at - max(self._heard_at, next(iter(self._opened_at.values())))
