"""Controls of the number of speculative tokens (K): of one engine, and of a supervised one over its restarts. Pure."""

from collections.abc import Callable, Sequence

from completion_server.engine.interface import (
    NGRAM,
    Engine,
    EngineInfo,
    SpeculationLookup,
    check_lookup,
    constant_lookup,
)

SEPARATED = "\0separated#"
"""Begins the salts of a caller that uses no salt both while drafts are on and while they are off. The salts of clients
are hexadecimal digits, so none begins so."""


class EngineSpeculation:
    """The `SpeculationControl` of one engine, and the cache salts that follow from it.

    A prompt that was computed while drafts were switched off has no draft KV, so its salt is another one than that of a
    prompt that is computed later. Drafts that are copied from the prompt have no KV at all.
    """

    def __init__(self, info: EngineInfo, publish: Callable[[SpeculationLookup, bool], None] | None = None) -> None:
        """Begin with the lookup of the start. `publish` is called with each lookup, and whether drafts are off."""
        self._info = info
        self._publish = publish
        self._lookup: SpeculationLookup = ()
        self._is_off = False
        self._epoch = 0
        """How often drafts were switched on again."""
        self.set_lookup(info.speculation_lookup)

    @property
    def lookup(self) -> SpeculationLookup:
        """The active K by number of sequences."""
        return self._lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Make `lookup` active from the next step on; see the interface."""
        self._change(check_lookup(lookup, self._info), is_off=False)

    def switch_off(self) -> None:
        """Set K = 0, and do not run the draft model; see the interface."""
        self._change(constant_lookup(0, self._info.max_num_seqs), is_off=True)

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now.

        While drafts are off, prompts may use all blocks; after they are switched on, only newer blocks.
        """
        is_changed = self._epoch and not cache_salt.startswith(SEPARATED)
        return f"{cache_salt}#{self._epoch}" if is_changed else cache_salt

    def _change(self, lookup: SpeculationLookup, *, is_off: bool) -> None:
        self._epoch += self._is_off and not is_off and self._info.draft_model != NGRAM
        self._lookup, self._is_off = lookup, is_off
        if self._publish is not None:
            self._publish(lookup, is_off)


class SupervisedSpeculation:
    """The `SpeculationControl` of a supervised engine: keeps the K that was last set for the engines that replace it.

    It can be set while the engine restarts.
    """

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
