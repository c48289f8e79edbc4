"""The load tester's editors, in a process of their own, which the playground starts and stops."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from importlib.metadata import entry_points

from completion_server.core.addresses import is_unix_socket
from completion_server.core.clock import Clock

logger = logging.getLogger(__name__)

NUM_EDITORS = 50
TYPE_S = 60.0
_START_S = 30.0
"""How long they may take to read their documents and to connect, and to end after their last answers."""
_COMMAND = "simulated-editors"
_MAX_OUTPUT = 64 * 1024
_OF_THE_ENGINE = "COMPLETION_SERVER_ENGINE_"
"""Variables that the server sets for the engine's processes; other processes with them end at once."""


class SimulatedEditorsProcess:
    """At most one group of simulated editors of this server. Needs a running event loop."""

    def __init__(self, clock: Clock, *, has_tls: bool) -> None:
        """Begin without editors; `connect` names the server. They have neither TLS nor a token."""
        self._clock = clock
        self._has_tls = has_tls
        self._address = ""
        self._is_open = True
        self._is_installed = False
        self._ends_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self.failure = ""
        """Why the last ones failed; "" if they did not."""

    def connect(self, address: str, *, is_open: bool) -> None:
        """Let them type to the server at an address; `is_open` tells that its authentication is off."""
        self._address = address
        self._is_open = is_open
        # Reads the metadata of all installed packages: once, not for each figure that a page shows.
        self._is_installed = bool(entry_points(group="completion_server.commands", name=_COMMAND))

    @property
    def unavailable_reason(self) -> str:
        """Why there can be none; "" if there can."""
        if self._has_tls or is_unix_socket(self._address) or not self._address:
            return "they need a listener without TLS (server.listen)"
        if not self._is_open:
            return "they have no token, which this server needs"
        if not self._is_installed:
            return "the load tester is not installed: pip install 'completion-server[loadtest]'"
        return ""

    @property
    def left_s(self) -> float:
        """Seconds for which they still type; 0 if there are none."""
        return 0.0 if self._task is None else max(1.0, self._ends_at - self._clock.now())

    def start(self) -> None:
        """Start them, unless they type already."""
        if self._task is None:
            self._ends_at = self._clock.now() + TYPE_S
            self.failure = ""
            self._task = asyncio.get_running_loop().create_task(self._run(), name="simulated editors")

    def stop(self) -> None:
        """Kill them, if they type."""
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Kill them and wait for their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        command = (sys.executable, "-m", "completion_server", _COMMAND, self._address)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_ENGINE)}
        options = ("--editors", str(NUM_EDITORS), "--seconds", f"{TYPE_S:g}", "--while-input")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                *options,
                env=environment,
                stdin=asyncio.subprocess.PIPE,  # its end tells them that this process has ended, however that was
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # so that its workers can be killed with it
            )
            try:
                await self._wait(process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        except OSError as error:
            self._fail(str(error))
        finally:
            self._task = None

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        """Wait for their end, and note a failure."""
        assert process.stderr is not None
        output = b""
        try:
            async with asyncio.timeout(TYPE_S + 2 * _START_S):
                while chunk := await process.stderr.read(_MAX_OUTPUT):
                    output = (output + chunk)[-_MAX_OUTPUT:]
                status = await process.wait()
        except TimeoutError:
            self._fail(f"they did not end within {_START_S:g} s after their time")
        else:
            if status:
                lines = output.decode(errors="replace").strip().splitlines()
                self._fail(lines[-1] if lines else f"exit status {status}")

    def _fail(self, reason: str) -> None:
        self.failure = reason
        logger.warning("the simulated editors failed: %s", reason)
