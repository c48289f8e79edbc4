"""Keeps the number of speculative tokens (K) that was last set, for the engines that replace a failed one."""

from collections.abc import Sequence

from completion_server.engine.interface import Engine, EngineInfo, SpeculationLookup, check_lookup


class SupervisedSpeculation:
    """The `SpeculationControl` of a supervised engine. It can be set while the engine restarts."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        """Change K of `engine`; `info` holds until an engine has started."""
        self._engine = engine
        self._info = info
        self._lookup: SpeculationLookup | None = None

    @property
    def lookup(self) -> SpeculationLookup:
        """The K that was set last, or with which the engine was started."""
        return self._info.speculation_lookup if self._lookup is None else self._lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Set K of this engine and of those that replace it; see `SpeculationControl`."""
        self._lookup = check_lookup(lookup, self._info)
        self._apply()

    def engine_started(self, engine: Engine) -> None:
        """Set K of an engine that has just started, if K was ever set."""
        self._engine, self._info = engine, engine.info
        self._apply()

    def _apply(self) -> None:
        control = self._engine.speculation
        if control is not None and self._lookup is not None:
            control.set_lookup(self._lookup)
