"""Usage records: one for each ended request, whose sums are those of the metrics. They hold no text."""

import hashlib
import hmac

from completion_server.core.events import Event, RequestEnded
from completion_server.ops.records.record_log import Put, Record, time_of

_NUM_DIGITS = 16


class UsageRecords:
    """Makes the usage records of a server."""

    def __init__(self, put: Put, key: bytes, *, model: str, region: str) -> None:
        """`key` makes users' pseudonyms; `model` names the target model with its revision."""
        self._put = put
        self._key = key
        self._constants = {"model": model, "region": region}

    def handle(self, event: Event, now_s: float) -> None:
        """Put the record of a request that ended at a Unix time. It counts what the metrics count."""
        if not isinstance(event, RequestEnded):
            return
        caller, outcome, usage, timings = event.request.caller, event.end.outcome, event.end.usage, event.end.timings
        is_counted = not usage.is_shared and usage.completion_tokens > 0
        cached = usage.cached_prompt_tokens if is_counted else 0
        record: Record = {
            "kind": "request",
            "time": time_of(now_s),
            "tenant": caller.tenant,
            "user": self._pseudonym(caller.tenant, caller.user),
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
        self._put(record)

    def _pseudonym(self, tenant: str, user: str) -> str:
        """Return a keyed hash of a user, 16 hexadecimal digits; "" for a caller without a name."""
        names = b"\0".join(name.encode(errors="surrogatepass") for name in (tenant, user))
        return hmac.digest(self._key, names, hashlib.sha256).hex()[:_NUM_DIGITS] if user else ""
