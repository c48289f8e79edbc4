"""Base of editors that make a call for each request and cancel it at the user's next key."""

import asyncio
from abc import ABC, abstractmethod

from loadtest.targets import ClientSettings
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.trace import TypedRequest

DROPPED = "the connection was dropped"


class CallEditor(ABC):
    """One editor; each request is a task of its own."""

    is_connected = True
    """Calls connect as they are made."""

    def __init__(self, settings: ClientSettings) -> None:
        """Send nothing yet."""
        self.settings = settings
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def ask(self, record: Record, max_tokens: int) -> None:
        """Make the call and write its events to the record. It may be cancelled at any time."""

    @abstractmethod
    def disconnect(self, host_shift: int | None) -> None:
        """Close the connection; go to another host from now on if `host_shift` is given."""

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        limit = max_tokens or record.request.max_tokens or self.settings.max_tokens
        task = asyncio.create_task(self._ask_until_stale(record, limit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""
        self.close_nowait()
        self.disconnect(host_shift)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """Cancel open requests; return the tasks that end with them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def _ask_until_stale(self, record: Record, max_tokens: int) -> None:
        at_s, outcome = self._stale_at(record.request)
        try:
            async with asyncio.timeout_at(None if at_s == float("inf") else record.clock.loop_time(at_s)):
                await self.ask(record, max_tokens)
        except TimeoutError:
            record.end(outcome)
        except asyncio.CancelledError:
            record.end(Outcome.ERROR, DROPPED)
            raise

    def _stale_at(self, request: TypedRequest) -> tuple[float, Outcome]:
        """Return when the request becomes stale, and its outcome then."""
        key_at_s = request.next_key_at_s if self.settings.cancels_at_key else float("inf")
        deadline_s = request.intended_at_s + (self.settings.deadline_s or float("inf"))
        return (deadline_s, Outcome.DEADLINE) if deadline_s < key_at_s else (key_at_s, Outcome.HUNG_UP)
