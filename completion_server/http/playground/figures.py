"""What the page shows of the whole server: counts of ended requests since the start, no text and no names. Pure."""

from collections import deque
from statistics import median
from typing import Any

from completion_server.core.events import Event, RequestEnded
from completion_server.core.outcome import FinishReason
from completion_server.serving.service import LoadSnapshot

_NUM_TTFTS = 128
_COUNTED = {
    FinishReason.STOP: "answered",
    FinishReason.LENGTH: "answered",
    FinishReason.SUPERSEDED: "superseded",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.SHED: "shed",
}


class LiveFigures:
    """Counts ended requests and their tokens."""

    def __init__(self) -> None:
        """Begin with zeros."""
        self._counts = dict.fromkeys((*_COUNTED.values(), "prompt_tokens", "cached_tokens"), 0)
        self._ttfts_ms: deque[float] = deque(maxlen=_NUM_TTFTS)

    def handle(self, event: Event) -> None:
        """Count an ended request; other events change nothing."""
        if not isinstance(event, RequestEnded):
            return
        usage, name = event.end.usage, _COUNTED.get(event.end.outcome.reason)
        if name is not None:
            self._counts[name] += 1
        if not usage.is_shared:
            self._counts["prompt_tokens"] += usage.counted_prompt_tokens
            self._counts["cached_tokens"] += usage.cached_prompt_tokens
        if event.ttft_s is not None:
            self._ttfts_ms.append(event.ttft_s * 1000)

    def document(self, load: LoadSnapshot) -> dict[str, Any]:
        """Return the counts beside the present load."""
        return {
            "sessions": load.num_sessions,
            "live": load.num_live,
            "queued": load.num_queued,
            "running": load.num_occupied,
            "slots": load.num_slots,
            **self._counts,
            "ttft_ms": median(self._ttfts_ms) if self._ttfts_ms else None,
        }
