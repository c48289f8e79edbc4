"""A vLLM engine of another process: the parent has started the core, and this process is one more client of it."""

import asyncio
import os
import pickle
from contextlib import suppress

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

from completion_server.engine.interface import AttachedEngine, EngineDeadError, EngineStats
from completion_server.engine.speculation_control import salted
from completion_server.engine.vllm.client import VllmClient
from completion_server.engine.vllm.drafts.shared_lookup import SharedLookup
from completion_server.engine.vllm.patches.sharing import asked_ready, late_replies
from completion_server.engine.vllm.process import ENABLE_ENV
from completion_server.engine.vllm.sharing.board import EngineBoard
from completion_server.engine.vllm.sharing.clients import client_at
from completion_server.engine.vllm.sharing.share import VllmShare

ATTACH_S = 10.0
"""How long the core may take to answer. It answers in an instant, unless it has died."""


class AttachedVllmEngine(VllmClient, AttachedEngine):
    """The engine of a front end."""

    def __init__(self, share: VllmShare, place: int) -> None:
        """Prepare for a place that no other process has.

        Raises:
            EngineDeadError: the parent has stopped the engine.

        """
        super().__init__(has_spans=share.has_spans)
        self._share = share
        self._place = place
        self._death = ""
        self._lookup: SharedLookup | None = None
        try:
            self._board = EngineBoard(share.board)
            if share.lookup is not None:
                self._lookup = SharedLookup(str(share.lookup), share.info.max_num_seqs)
        except FileNotFoundError:
            raise EngineDeadError("the engine was stopped") from None

    async def start(self) -> None:
        """Attach; see the interface."""
        # vLLM's plugins tell an engine's process by this. A front end inherits it from its parent, and is none.
        os.environ.pop(ENABLE_ENV, None)
        try:
            llm = await asyncio.to_thread(self._attach)
        except Exception as error:
            msg = f"can't attach to the engine: {error or type(error).__name__}"
            raise EngineDeadError(msg) from error
        self._accounting.read_k = self._read_k
        self._connected(llm, self._share.info)
        if self._death:
            self.fail(self._death)
            raise EngineDeadError(self._death)

    def _attach(self) -> AsyncLLM:
        client = client_at(self._place)
        late_replies.apply()
        with self._without_exporter() as stack:
            stack.callback(asked_ready.apply(None, ATTACH_S))
            return AsyncLLM.from_vllm_config(
                pickle.loads(self._share.config),
                disable_log_stats=not self._has_spans,  # vLLM makes spans from what it logs
                client_addresses=self._share.addresses[client],
                client_count=len(self._share.addresses),
                client_index=client,
            )

    def _read_k(self, num_outputs: int) -> int:
        """Return the K of a step: other clients have outputs in it, too."""
        lookup = self._lookup.read_new() if self._lookup is not None else None
        if lookup is not None:
            self._accounting.lookup = tuple(lookup)
        return self._accounting.k_of(max(num_outputs, self._board.num_running))

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now, by the parent's epoch."""
        return salted(cache_salt, self._lookup.epoch if self._lookup is not None else 0)

    def stats(self) -> EngineStats:
        """Return the counters: those of tokens are this process's own, the others those of the whole engine."""
        return EngineStats(
            num_running=self._board.num_running,
            num_waiting=self._board.num_waiting,
            num_generated_tokens=self._accounting.num_generated_tokens,
            num_aborted_tokens=self._accounting.num_aborted_tokens,
            kv_usage=self._board.kv_usage,
        )

    def fail(self, reason: str) -> None:
        """End every open generation; see the interface."""
        self._death = reason
        llm = self._disconnect()
        if llm is not None:
            llm.shutdown(0)

    async def stop(self) -> None:
        """Detach. The parent aborts what the core may still compute for this process, when it has ended."""
        if self._llm is not None:
            with suppress(VllmEngineDeadError):
                await self._llm.engine_core.abort_requests_async(list(self._llm.output_processor.request_states))
        self.fail(self._death or "the engine was stopped")
