"""How long to wait after a key: what is usual of the user and of the server."""

import statistics
from collections import deque

from completion_client.editing.settings import EditingSettings


class Rhythm:
    """The user's usual time between keys and the server's usual time to the first text."""

    def __init__(self, settings: EditingSettings) -> None:
        """Begin with the times that are assumed."""
        self._settings = settings
        self._gaps_ms: deque[float] = deque([settings.gap_ms], settings.num_gaps)
        self._ttfts_ms: deque[float] = deque([settings.ttft_ms], settings.num_ttfts)
        self._key_ms: float | None = None

    def typed(self, at_ms: float) -> None:
        """Take a key."""
        gap_ms = self._settings.gap_max_ms if self._key_ms is None else at_ms - self._key_ms
        if gap_ms < self._settings.gap_max_ms:
            self._gaps_ms.append(gap_ms)
        self._key_ms = at_ms

    def answered(self, ttft_ms: float) -> None:
        """Take the time from a request to its first text."""
        self._ttfts_ms.append(ttft_ms)

    @property
    def delay_ms(self) -> float:
        """The wait between a key and its request: none if the text can be there before the next key."""
        settings = self._settings
        gap_ms, ttft_ms = statistics.median(self._gaps_ms), statistics.median(self._ttfts_ms)
        if not settings.follows_rhythm or ttft_ms <= settings.fast_share * gap_ms:
            return settings.delay_min_ms
        return min(settings.delay_max_ms, max(settings.delay_min_ms, settings.delay_factor * gap_ms))
