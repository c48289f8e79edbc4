"""Parts of editors: the completion cache, the text typed next, and calls that end at the user's next key."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from loadtest.targets import ClientSettings
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.typed import Text, TypedRequest

DROPPED = "the connection was dropped"


def common_chars(completion: str, request: TypedRequest) -> int:
    """Return how many of a completion's first characters the user types next."""
    before, end = request.text.before, request.end
    length = min(len(completion), len(before) - end)
    if before.startswith(completion[:length], end):
        return length
    return next(place for place in range(length) if completion[place] != before[end + place])


def accepted_chars(completion: str, request: TypedRequest, min_chars: int) -> int:
    """Return how many characters of a shown completion the user accepts: those typed next, if they are enough.

    The text typed afterwards does not depend on it, so every target gets the same traffic.
    """
    found = common_chars(completion, request)
    return found if found >= min_chars else 0


def is_typed_along(text: str, request: TypedRequest) -> bool:
    """Tell whether the user types the text of an answer, as far as both are known. False for no text."""
    known = min(len(text), len(request.text.before) - request.end)
    return known > 0 and common_chars(text, request) == known


@dataclass(frozen=True, slots=True)
class _Remembered:
    text: Text
    end: int
    completion: str


class EditorCache:
    """An editor's recent completions. A user who types the text of one sees the rest of it, without a request."""

    __slots__ = ("_recent",)

    def __init__(self, entries: int) -> None:
        self._recent: deque[_Remembered] = deque(maxlen=entries)

    def add(self, request: TypedRequest, completion: str) -> None:
        """Remember a whole completion."""
        self._recent.append(_Remembered(request.text, request.end, completion))

    def find(self, request: TypedRequest) -> str:
        """Return the rest of the newest remembered completion that fits a request; "" if none fits."""
        for each in reversed(self._recent):
            typed = request.end - each.end
            if each.text != request.text or not 0 <= typed < len(each.completion):
                continue
            rest = each.completion[typed:]
            if rest.strip() and request.text.before.startswith(each.completion[:typed], each.end):
                return rest
        return ""


class CallEditor(ABC):
    """One editor; each request is a task of its own."""

    is_connected = True
    """Calls connect as they are made."""

    def __init__(self, settings: ClientSettings) -> None:
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
