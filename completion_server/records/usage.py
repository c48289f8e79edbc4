"""Usage records: one JSON line for each ended request, whose sums are those of the metrics. They hold no text.

What can't be written, because the disk is full or too many records wait, is added up by tenant, user and day, and
written as one line for each sum when there is room again. Beyond a bound the sums are no longer told apart by user.
"""

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from completion_server.core.events import RequestEnded
from completion_server.core.outcome import Timings
from completion_server.records.files import RotatingFile
from completion_server.records.pseudonyms import Pseudonyms
from completion_server.records.writer import WriteStatus

logger = logging.getLogger(__name__)

MAX_SUMS = 10_000
REQUEST, SUM = "request", "sum"

SumKey = tuple[str, str, str]
"""Tenant, pseudonym and day."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What one request has used."""

    ended_s: float
    """Unix time in seconds."""
    tenant: str
    user: str
    """The user's name, which is not written: its pseudonym is."""
    is_verified: bool
    request_id: str
    outcome: str
    shed_reason: str
    cache_level: str
    is_shared: bool
    """Whether the record of another request has the same tokens, because one generation answered both."""
    prompt_tokens: int
    """Tokens of the prompt that were computed."""
    cached_tokens: int
    """Tokens of the prompt that were in the prefix cache."""
    completion_tokens: int
    timings: Timings

    @classmethod
    def of(cls, event: RequestEnded, ended_s: float) -> "UsageRecord":
        """Return the record of a request that ended at a Unix time. It counts what the metrics count."""
        caller, end = event.request.caller, event.end
        outcome, usage = end.outcome, end.usage
        is_counted = not usage.is_shared and usage.completion_tokens > 0
        cached = usage.cached_prompt_tokens if is_counted else 0
        return cls(
            ended_s,
            caller.tenant,
            caller.user,
            caller.is_verified,
            event.request.id,
            outcome.reason.value,
            outcome.shed_reason.value if outcome.shed_reason else "",
            usage.cache_level.value,
            usage.is_shared,
            prompt_tokens=usage.counted_prompt_tokens - cached if is_counted else 0,
            cached_tokens=cached,
            completion_tokens=usage.completion_tokens if is_counted else 0,
            timings=end.timings,
        )


@dataclass(slots=True)
class Sums:
    """What several requests have used together."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Sums | UsageRecord") -> None:
        """Add a request or other sums."""
        if isinstance(other, Sums):
            self.num_requests += other.num_requests
            self.outcomes.update(other.outcomes)
        else:
            self.num_requests += 1
            self.outcomes[other.outcome] += 1
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens


class SumTable:
    """Sums by tenant, pseudonym and day: at most `max_sums`, and one for the rest of each day."""

    def __init__(self, max_sums: int = MAX_SUMS) -> None:
        """Begin empty."""
        self.sums: dict[SumKey, Sums] = {}
        self._max_sums = max_sums

    def add(self, key: SumKey, used: Sums | UsageRecord) -> None:
        """Add to the sum of a key; in a full table to that of its day alone."""
        if key not in self.sums and len(self.sums) >= self._max_sums:
            key = ("", "", key[2])
        self.sums.setdefault(key, Sums()).add(used)

    def merge(self, others: "SumTable") -> None:
        """Add the sums of another table."""
        for key, sums in others.sums.items():
            self.add(key, sums)


class UsageSink:
    """Writes usage records to a file, and adds up those that can't be written."""

    def __init__(
        self, file: RotatingFile, pseudonyms: Pseudonyms, *, model: str, region: str, max_sums: int = MAX_SUMS
    ) -> None:
        """`model` names the target model with its revision, `region` the server's region."""
        self.status = WriteStatus("usage", str(file.path))
        self._file = file
        self._pseudonyms = pseudonyms
        self._constants = {"model": model, "region": region}
        self._max_sums = max_sums
        self._lock = threading.Lock()
        self._unwritten = SumTable(max_sums)

    def write(self, records: Sequence[UsageRecord]) -> None:
        """Write what could not be written before, then these records."""
        if self._write_sums() and (not records or self._append(self._line(each) for each in records)):
            return
        for each in records:
            self.count_only(each)

    def count_only(self, record: UsageRecord) -> None:
        """Add a record to the sums that are written later."""
        key = (record.tenant, self._pseudonyms.of(record.tenant, record.user), _day(record.ended_s))
        with self._lock:
            self._unwritten.add(key, record)
            self.status.num_lost += 1

    def close(self) -> None:
        """Flush and close the file. Sums that are still unwritten go to the log, all together.

        Raises:
            OSError: it can't be flushed.

        """
        rest = Sums()
        for sums in self._unwritten.sums.values():
            rest.add(sums)
        if rest.num_requests:
            logger.error(
                "usage of %d requests was not written: %d prompt, %d cached and %d completion tokens",
                rest.num_requests, rest.prompt_tokens, rest.cached_tokens, rest.completion_tokens,
            )  # fmt: skip
        self._file.close()

    def _write_sums(self) -> bool:
        """Write the sums, if there are any; return whether none are left."""
        with self._lock:
            if not self._unwritten.sums:
                return True
            taken, self._unwritten = self._unwritten, SumTable(self._max_sums)
        if self._append(self._sum_lines(taken)):
            return True
        with self._lock:
            taken.merge(self._unwritten)
            self._unwritten = taken
        return False

    def _append(self, lines: Iterable[dict[str, Any]]) -> bool:
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        try:
            self._file.append(data.encode())
        except OSError as error:
            self.status.failed(error)
            return False
        self.status.worked()
        return True

    def _line(self, record: UsageRecord) -> dict[str, Any]:
        timings = record.timings
        return {
            "kind": REQUEST,
            "time": datetime.fromtimestamp(record.ended_s, UTC).isoformat(timespec="milliseconds"),
            "tenant": record.tenant,
            "user": self._pseudonyms.of(record.tenant, record.user),
            "verified": record.is_verified,
            **self._constants,
            "request": record.request_id,
            "outcome": record.outcome,
            "shed_reason": record.shed_reason,
            "cache": record.cache_level,
            "shared": record.is_shared,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "queue_ms": round(timings.queue_ms, 3),
            "tokenise_ms": round(timings.tokenise_ms, 3),
            "prefill_ms": round(timings.prefill_ms, 3),
            "decode_ms": round(timings.decode_ms, 3),
            "total_ms": round(timings.total_ms, 3),
        }

    def _sum_lines(self, table: SumTable) -> Iterator[dict[str, Any]]:
        for (tenant, user, day), sums in table.sums.items():
            yield {
                "kind": SUM,
                "day": day,
                "tenant": tenant,
                "user": user,
                **self._constants,
                "requests": sums.num_requests,
                "outcomes": dict(sums.outcomes),
                "prompt_tokens": sums.prompt_tokens,
                "cached_tokens": sums.cached_tokens,
                "completion_tokens": sums.completion_tokens,
            }


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()
