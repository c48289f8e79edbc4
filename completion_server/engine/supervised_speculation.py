"""Keeps the number of speculative tokens (K) that was last set, for the engines that replace a failed one."""

from collections.abc import Sequence

from completion_server.engine.interface import Engine, EngineInfo, SpeculationLookup, check_lookup, constant_lookup


class SupervisedSpeculation:
    """The `SpeculationControl` of a supervised engine. It can be set while the engine restarts."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        """Change K of `engine`; `info` holds until an engine has started."""
        self._engine = engine
        self._info = info
        self._lookup: SpeculationLookup | None = None
        self._is_off = False

    @property
    def lookup(self) -> SpeculationLookup:
        """The K that was set last, or with which the engine was started."""
        return self._info.speculation_lookup if self._lookup is None else self._lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Set K of this engine and of those that replace it; see `SpeculationControl`."""
        self._lookup, self._is_off = check_lookup(lookup, self._info), False
        self._apply()

    def switch_off(self) -> None:
        """Switch drafts off in this engine and in those that replace it; see `SpeculationControl`."""
        self._lookup, self._is_off = constant_lookup(0, self._info.max_num_seqs), True
        self._apply()

    def engine_started(self, engine: Engine) -> None:
        """Set K of an engine that has just started, if K was ever set."""
        self._engine, self._info = engine, engine.info
        self._apply()

    def _apply(self) -> None:
        control = self._engine.speculation
        if control is None or self._lookup is None:
            return
        if self._is_off:
            control.switch_off()
        else:
            control.set_lookup(self._lookup)
