"""The parent's side of a shared engine: starts the core for several clients, and is the first of them."""

import shutil
import tempfile
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.transformers_utils.config import maybe_register_config_serialize_by_value
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.utils import EngineZmqAddresses, launch_core_engines
from vllm.v1.executor import Executor

from completion_server.engine.interface import EngineInfo
from completion_server.engine.vllm.sharing.board import EngineBoard
from completion_server.engine.vllm.sharing.clients import client_at
from completion_server.engine.vllm.sharing.share import VllmShare

_INPUT, _OUTPUT = "input_address", "output_address"


class SharedCore:
    """The sockets and files of an engine core that front ends attach to, in a folder of this user's alone."""

    def __init__(self, num_places: int, folder: Path | None) -> None:
        """Make the folder, within `folder`."""
        self.folder = Path(tempfile.mkdtemp(prefix="completion-server-", dir=folder))
        self.board = EngineBoard(self.folder / "board", is_new=True)
        self._num_places = num_places
        self._addresses = tuple(
            {_INPUT: f"ipc://{self.folder}/{client}-in", _OUTPUT: f"ipc://{self.folder}/{client}-out"}
            for client in range(client_at(num_places))
        )
        self._config = b""

    def start(self, config: VllmConfig, **options: Any) -> AsyncLLM:
        """Start the core, and return the parent's client. `options` are those of `AsyncLLM.from_vllm_config`."""
        maybe_register_config_serialize_by_value()
        self._config = bytes(ForkingPickler.dumps(config))
        addresses = EngineZmqAddresses(
            inputs=[each[_INPUT] for each in self._addresses], outputs=[each[_OUTPUT] for each in self._addresses]
        )
        manager: Any = None
        try:
            with (
                self.board.published(),
                launch_core_engines(config, Executor.get_class(config), True, addresses) as launch,
            ):
                manager = launch.engine_manager
            llm = AsyncLLM.from_vllm_config(
                config, client_addresses=self._addresses[0], client_count=len(self._addresses), **options
            )
        except BaseException:
            if manager is not None:
                manager.shutdown(timeout=0)
            raise
        # From here on it watches and stops the core as a client does that has started one.
        llm.engine_core.resources.engine_manager = manager
        llm.engine_core.start_engine_core_monitor()
        return llm

    def share(self, info: EngineInfo, lookup: Path | None, *, has_spans: bool) -> VllmShare:
        """Return what front ends need; `lookup` is the file of the lookup of K, if K is live."""
        return VllmShare(
            info, self._num_places, self._config, self._addresses, self.board.path, lookup, has_spans=has_spans
        )

    def close(self) -> None:
        """Remove the folder. May be called more than once."""
        shutil.rmtree(self.folder, ignore_errors=True)
