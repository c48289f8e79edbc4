"""Usage records: one JSON line for each ended request, whose sums are those of the metrics. They hold no text.

What can't be written is added up by tenant, user and day. Beyond a bound the sums are no longer told apart by user.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

from completion_server.core.events import Event, RequestEnded
from completion_server.records.files import RotatingFile
from completion_server.records.pseudonyms import Pseudonyms
from completion_server.records.sums import BY, REQUEST, UsageSums
from completion_server.records.writer import Record, RecordWriter, time_of

logger = logging.getLogger(__name__)

MAX_SUMS = 10_000


class UsageWriter(RecordWriter):
    """Writes usage records."""

    kind = "usage"

    def __init__(
        self,
        file: RotatingFile,
        pseudonyms: Pseudonyms,
        *,
        model: str,
        region: str,
        max_sums: int = MAX_SUMS,
        **options: Any,  # noqa: ANN401 - see RecordWriter
    ) -> None:
        """`model` names the target model with its revision, `region` the server's region."""
        super().__init__(file, **options)
        self._pseudonyms = pseudonyms
        self._constants = {"model": model, "region": region}
        self._max_sums = max_sums
        self._sums = UsageSums(max_sums=max_sums)

    def handle(self, event: Event, now_s: float) -> None:
        """Put the record of an ended request into the queue."""
        if isinstance(event, RequestEnded):
            self.put_nowait(self.record_of(event, now_s))

    def record_of(self, event: RequestEnded, ended_s: float) -> Record:
        """Return the record of a request that ended at a Unix time. It counts what the metrics count."""
        caller, outcome, usage, timings = event.request.caller, event.end.outcome, event.end.usage, event.end.timings
        is_counted = not usage.is_shared and usage.completion_tokens > 0
        cached = usage.cached_prompt_tokens if is_counted else 0
        return {
            "kind": REQUEST,
            "time": time_of(ended_s),
            "tenant": caller.tenant,
            "user": self._pseudonyms.of(caller.tenant, caller.user),
            "verified": caller.is_verified,
            **self._constants,
            "request": event.request.id,
            "outcome": outcome.reason.value,
            "shed_reason": outcome.shed_reason.value if outcome.shed_reason else "",
            "cache": usage.cache_level.value,
            "shared": usage.is_shared,
            "prompt_tokens": usage.counted_prompt_tokens - cached if is_counted else 0,
            "cached_tokens": cached,
            "completion_tokens": usage.completion_tokens if is_counted else 0,
            "queue_ms": round(timings.queue_ms, 3),
            "tokenise_ms": round(timings.tokenise_ms, 3),
            "prefill_ms": round(timings.prefill_ms, 3),
            "decode_ms": round(timings.decode_ms, 3),
            "total_ms": round(timings.total_ms, 3),
        }

    def close_file(self) -> None:
        """Flush and close the file. Sums that are still unwritten go to the log, all together."""
        rest = self._sums.total
        if rest["requests"]:
            logger.error(
                "usage of %d requests was not written: %d prompt, %d cached and %d completion tokens",
                rest["requests"], rest["prompt_tokens"], rest["cached_tokens"], rest["completion_tokens"],
            )  # fmt: skip
        super().close_file()

    def _add_up(self, record: Record) -> int:
        return self._sums.add(record)

    def _take_sums(self) -> Sequence[Record]:
        sums, self._sums = self._sums.sums, UsageSums(BY, self._max_sums)
        return [each | self._constants for each in sums.values()]

    def _append(self, records: Sequence[Record]) -> None:
        self._file.append(b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records))
