"""Changes the number of speculative tokens (K) of a running vLLM engine. Imports nothing of vLLM."""

from collections.abc import Sequence

from completion_server.engine.draft_cache import DraftCache
from completion_server.engine.interface import EngineInfo, SpeculationLookup, check_lookup, constant_lookup
from completion_server.engine.vllm.drafts.shared_lookup import LookupPublisher
from completion_server.engine.vllm.token_accounting import TokenAccounting


class VllmSpeculation:
    """The `SpeculationControl` of a vLLM engine."""

    def __init__(
        self, info: EngineInfo, publisher: LookupPublisher, accounting: TokenAccounting, draft_cache: DraftCache
    ) -> None:
        """Write to `publisher`, and to `accounting`, which estimates the drafts of aborted generations from K."""
        self._info = info
        self._publisher = publisher
        self._accounting = accounting
        self._draft_cache = draft_cache
        self.set_lookup(info.speculation_lookup)

    @property
    def lookup(self) -> SpeculationLookup:
        """The active K by number of sequences."""
        return self._accounting.lookup

    def set_lookup(self, lookup: Sequence[int]) -> None:
        """Make `lookup` active from the next step on; see the interface."""
        self._accounting.lookup = check_lookup(lookup, self._info)
        self._draft_cache.switch(is_off=False)
        self._publisher.write(lookup)

    def switch_off(self) -> None:
        """Set K = 0, and do not run the draft model; see the interface."""
        self._accounting.lookup = constant_lookup(0, self._info.max_num_seqs)
        self._draft_cache.switch(is_off=True)
        self._publisher.switch_off()
