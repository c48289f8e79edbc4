"""Parts of editors: requests and answers on the wire, the text typed next, the completion cache, and calls."""

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, ServiceError
from completion_client.endpoint import Metadata, caller_metadata
from loadtest.targets import ClientSettings
from loadtest.targets.record import Outcome, Record
from loadtest.traffic.typed import NEVER_S, OPENING_SEQUENCE, TypedRequest, TypedSession

DROPPED = "the connection was dropped"
NEXT_EDIT = "next_edit"
"""The editors' mode in which they ask for next edits."""
_NUM_EDITS = 4
"""Recent edits in a request for a next edit: what was typed between the requests before."""

_OUTCOMES = {
    pb.FINISH_REASON_SUPERSEDED: Outcome.SUPERSEDED,
    pb.FINISH_REASON_SHED: Outcome.SHED,
    pb.FINISH_REASON_DEADLINE: Outcome.DEADLINE,
    pb.FINISH_REASON_CANCELLED: Outcome.HUNG_UP,
}
_CACHE_LEVELS = {pb.CACHE_LEVEL_LOCAL: "local", pb.CACHE_LEVEL_SHARED: "shared"}
_WHOLE = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)


def common_chars(completion: str, request: TypedRequest) -> int:
    """Return how many of a completion's first characters the user types next."""
    pairs = zip(completion, request.text.before[request.end : request.end + len(completion)], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


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


def has_right_line(text: str, request: TypedRequest) -> bool:
    """Tell whether the first line of an answer that is not blank is the one that the user types next."""
    shown, typed = (each.lstrip().partition("\n")[0].rstrip() for each in (text, request.truth))
    return bool(shown) and shown == typed


class EditorCache:
    """An editor's recent completions. A user who types the text of one sees the rest of it, without a request."""

    __slots__ = ("_recent",)

    def __init__(self, entries: int) -> None:
        self._recent: deque[tuple[TypedRequest, str]] = deque(maxlen=entries)

    def add(self, request: TypedRequest, completion: str) -> None:
        """Remember a whole completion."""
        self._recent.append((request, completion))

    def find(self, request: TypedRequest) -> str:
        """Return the rest of the newest remembered completion that fits a request; "" if none fits."""
        for asked, completion in reversed(self._recent):
            typed, text = request.end - asked.end, request.text.before
            is_along = request.text == asked.text and typed >= 0 and text.startswith(completion[:typed], asked.end)
            if is_along and (rest := completion[typed:]).strip():
                return rest
        return ""


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """Makes the request messages of one session."""

    session: TypedSession
    name: str
    """The session's name."""
    user: str
    settings: ClientSettings

    @property
    def metadata(self) -> Metadata:
        """The metadata of the session's calls: its user and tenant."""
        return caller_metadata(self.user, self.settings.tenant)

    def message(self, record: Record, max_tokens: int | None) -> pb.CompleteRequest:
        """Return the message for a request."""
        request = record.request
        message = pb.CompleteRequest(
            session_id=self.name,
            sequence=request.sequence,
            document_uri=self.session.document_uri,
            language_id=self.session.language_id,
            prefix=request.prefix,
            suffix=request.suffix,
            trigger=pb.Trigger.Value(f"TRIGGER_{request.trigger.name}"),
            mode=pb.Mode.Value(f"MODE_{self.settings.mode.upper()}"),
            max_tokens=max_tokens or request.max_tokens or self.settings.max_tokens,
            temperature=0.0,
            traceparent=self.traceparent(request.sequence),
            without_completion_cache=not self.settings.use_completion_cache,
        )
        if self.settings.mode == NEXT_EDIT:
            record.asks_edit = True
            ask_next_edit(message, self.session, request)
        return message

    def traceparent(self, sequence: int) -> str:
        """Return the trace that a request begins, "" for none. The name of the session differs from run to run."""
        share = self.settings.traced_share
        if not share:
            return ""
        chance = random.Random(f"{self.name}/{sequence}")
        return f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01" if chance.random() < share else ""


def error_text(error: ServiceError) -> str:
    """Return the text of an error for a report: the status and the message, or the message of a lost connection."""
    return error.message if isinstance(error, ConnectionLostError) else f"{error.status.name}: {error.message}"


def take_end(record: Record, end: pb.End) -> None:
    """End a record as an End says, which may bring the last text along."""
    if end.HasField("edit"):
        record.edit_came()
    if end.text:
        record.text_came(end.text)
    record.completion_tokens = end.usage.completion_tokens
    record.drafted_tokens, record.accepted_tokens = end.usage.drafted_tokens, end.usage.accepted_draft_tokens
    record.cache_level = _CACHE_LEVELS.get(end.usage.cache_level, "")
    if end.HasField("timings"):
        record.server = end.timings
    if end.finish_reason == pb.FINISH_REASON_SHED:
        record.shed_reason = pb.ShedReason.Name(end.shed_reason).removeprefix("SHED_REASON_").lower()
    if end.finish_reason in _WHOLE:
        record.end_whole()
    else:
        record.end(_OUTCOMES.get(end.finish_reason, Outcome.ERROR), end.error.message)


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
            async with asyncio.timeout_at(None if at_s == NEVER_S else record.clock.loop_time(at_s)):
                await self.ask(record, max_tokens)
        except TimeoutError:
            record.end(outcome)
        except asyncio.CancelledError:
            record.end(Outcome.ERROR, DROPPED)
            raise

    def _stale_at(self, request: TypedRequest) -> tuple[float, Outcome]:
        """Return when the request becomes stale, and its outcome then."""
        key_at_s = request.next_key_at_s if self.settings.cancels_at_key else NEVER_S
        deadline_s = request.intended_at_s + (self.settings.deadline_s or NEVER_S)
        return (deadline_s, Outcome.DEADLINE) if deadline_s < key_at_s else (key_at_s, Outcome.HUNG_UP)


def ask_next_edit(message: pb.CompleteRequest, session: TypedSession, request: TypedRequest) -> None:
    """Make the message of a request one for a next edit: whole lines, and what was typed before."""
    message.prefix = message.prefix.partition("\n")[2] or message.prefix
    message.suffix = message.suffix[: message.suffix.rfind("\n") + 1] or message.suffix
    message.next_edit.document_version = request.sequence
    place = request.sequence - OPENING_SEQUENCE
    before = (session.opening, *session.requests[:place])[max(0, place - _NUM_EDITS) : place]
    for begin, end in pairwise([*(each.end for each in before), request.end]):
        if begin < end:
            message.next_edit.recent_edits.add(document_uri=session.document_uri, diff=_hunk(request, begin, end))


def _hunk(request: TypedRequest, begin: int, end: int) -> str:
    """Return the change of the document by the text typed from one offset to another."""
    before, rest = request.text.before, request.text.after.partition("\n")[0]
    line = before.rfind("\n", 0, begin) + 1
    number = before.count("\n", 0, line) + 1
    new = (before[line:end] + rest).split("\n")
    header = f"@@ -{number},1 +{number},{len(new)} @@\n-{before[line:begin]}{rest}\n"
    return header + "".join(f"+{each}\n" for each in new)
