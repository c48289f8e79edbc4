"""Records the results of requests as counters and histograms. It keeps no request.

Two kinds of requests are left out of the figures of typed requests: a prefetch, for which no user waits, counts as
intended, sent and ended only; an abuser's requests count under `abuser/` only. The histogram `total` has the times of
whole answers; the times of all others are under their outcome.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadtest.stats import RunStats, Tally
from loadtest.targets.editor import accepted_chars, has_right_line
from loadtest.targets.record import WHOLE, Outcome, Record
from loadtest.traffic.sections import CriteriaSettings
from loadtest.traffic.typed import Trigger, TypedSession

ABUSER = "abuser-"
"""Prefix of the abusers' user names."""

NOWHERE = "nowhere"
"""The region of requests that reached none, of editors that choose their host."""

_NOWHERE = -1
_MAX_ERRORS = 20
_OTHER_ERRORS = "other"
_LONGEST_ERROR = 120
_SHOWN = (*WHOLE, Outcome.CACHED)


@dataclass(frozen=True, slots=True)
class _Tallies:
    """The tally of the run, and that of the slice of a request's intended time."""

    total: Tally
    piece: Tally
    region: str
    """The region that served the request, or had to."""
    is_region_sliced: bool
    """Whether regions are counted by time: there are several."""

    def count(self, name: str, amount: int = 1) -> None:
        """Count in both."""
        self.total.counters[name] += amount
        self.piece.counters[name] += amount

    def count_here(self, name: str) -> None:
        """Count in the region."""
        for tally in (self.total, self.piece)[: 1 + self.is_region_sliced]:
            tally.counters[f"region/{self.region}/{name}"] += 1

    def record(self, name: str, seconds: float, *, is_sliced: bool = True) -> None:
        """Record a time in both, or in that of the run alone."""
        for tally in (self.total, self.piece)[: 1 + is_sliced]:
            tally.record(name, seconds)


class Recorder:
    """Records one worker's requests to one target."""

    def __init__(
        self,
        stats: RunStats,
        sessions: Iterable[TypedSession],
        regions: Mapping[int, str],
        criteria: CriteriaSettings,
        *,
        is_chosen: bool = False,
    ) -> None:
        """Record into `stats`; `regions` has the names of the sessions' regions, or of the hosts if editors choose."""
        self._stats = stats
        self._criteria = criteria
        sessions = tuple(sessions)
        self._regions = regions
        self._homes = {session.number: _NOWHERE if is_chosen else session.region for session in sessions}
        self._abusers = frozenset(session.number for session in sessions if session.user.startswith(ABUSER))
        self._errors: set[str] = set()
        stats.total.counters["sessions"] += len(sessions) - len(self._abusers)

    def due(self, record: Record) -> None:
        """Record a request at its intended time."""
        if self._is_abuser(record):
            self._stats.total.counters["abuser/intended"] += 1
            return
        self._tallies(record).count("intended")
        if record.request.trigger is Trigger.PREFETCH:
            self._stats.total.counters["prefetches"] += 1

    def ended(self, record: Record) -> None:
        """Record the end of a request."""
        outcome = record.outcome.value
        if self._is_abuser(record):
            self._stats.total.counters[f"abuser/outcome/{outcome}"] += 1
            return
        tallies = self._tallies(record)
        tallies.count(f"outcome/{outcome}")
        tallies.count_here("intended")
        if record.is_sent:
            tallies.count("sent")
            tallies.total.record("lag", record.sent_at_s - record.request.intended_at_s)
        tallies.total.counters["tokens"] += record.completion_tokens
        tallies.total.counters["messages"] += record.num_messages
        self._count_kind(record, tallies)
        if record.request.trigger is not Trigger.PREFETCH:
            self._judge(record, tallies)

    def connections(self, reconnects_s: Iterable[float], num_lost: int) -> None:
        """Record the times to reconnect, and the number of sessions without a connection at the end."""
        total = self._stats.total
        for seconds in reconnects_s:
            total.counters["reconnects"] += 1
            total.record("reconnect", seconds)
        total.counters["sessions_lost"] += num_lost

    def present(self, at_s: float, editors: Mapping[int, int]) -> None:
        """Record how many editors are at each host at a time of the run, where they choose it; once in a slice."""
        piece = self._stats.slice_at(at_s)
        for place, count in editors.items():
            piece.counters[f"region/{self._regions[place]}/present"] += count

    def generated(self, num_tokens: float) -> None:
        """Record the tokens that the engine generated during the run, for all callers; nan if unknown."""
        if not math.isnan(num_tokens):
            self._stats.total.counters["generated_tokens"] += round(num_tokens)

    def _count_kind(self, record: Record, tallies: _Tallies) -> None:
        """Count what only some requests have."""
        if record.outcome is Outcome.ERROR:
            self._count_error(record, tallies)
        if record.cache_level:
            tallies.count(f"cache/{record.cache_level}")
        if record.asks_edit and record.outcome in WHOLE:
            tallies.count("edit_answers")
            tallies.count("edits", int(record.has_edit))
        if record.num_sent > 1:
            tallies.count("resent")
        if record.num_duplicates:
            tallies.count("duplicates", record.num_duplicates)
        if record.shed_reason:
            tallies.total.counters[f"shed_reason/{record.shed_reason}"] += 1

    def _judge(self, record: Record, tallies: _Tallies) -> None:
        """Record what an answer was worth to its user."""
        criteria, request, outcome = self._criteria, record.request, record.outcome
        assert record.ended_at_s is not None
        is_cached = outcome is Outcome.CACHED  # such an answer says nothing of the target
        total_s = 0.0 if is_cached else record.ended_at_s - request.intended_at_s
        self._record_times(record, total_s, tallies.total)
        if request.is_pause:
            tallies.count("pauses")
            tallies.count_here("pauses")
            tallies.total.counters["pauses_cached"] += is_cached
        if (ttft_s := record.ttft_s) is None:
            return
        tallies.total.record(f"ttft/outcome/{outcome.value}", ttft_s)
        if not is_cached:
            tallies.record("ttft", ttft_s)
            tallies.record(f"ttft/region/{tallies.region}", ttft_s, is_sliced=tallies.is_region_sliced)
            if request.is_pause:
                tallies.record("ttft/pause", ttft_s)
        tallies.count("shown")
        tallies.total.counters["shown_chars"] += len(record.text)
        is_good = ttft_s <= criteria.slo_ttft_ms / 1000 and total_s <= criteria.slo_total_ms / 1000
        if is_good and outcome in _SHOWN:
            tallies.count("good")
        if ttft_s <= criteria.within_ms / 1000:
            self._count_in_time(record, request.next_key_at_s - request.intended_at_s - ttft_s, tallies)

    def _count_in_time(self, record: Record, stands_s: float, tallies: _Tallies) -> None:
        """Count an answer whose first text came in time, and stands for so long before the user's next key."""
        tallies.count("in_time")
        if record.request.is_pause:
            tallies.count("pauses_in_time")
            tallies.count_here("pauses_in_time")
            if has_right_line(record.text, record.request):
                tallies.count("pauses_right")
        if stands_s >= self._criteria.before_next_key_ms / 1000:
            tallies.count("seen")
            tallies.count_here("seen")
            tallies.total.counters["seen_tokens"] += record.completion_tokens
            min_chars = self._criteria.accepts_min_chars
            tallies.count("accepted_chars", accepted_chars(record.text, record.request, min_chars))

    @staticmethod
    def _record_times(record: Record, total_s: float, total: Tally) -> None:
        total.record(f"total/outcome/{record.outcome.value}", total_s)
        if record.outcome in WHOLE:
            total.record("total", total_s)
            if record.request.is_pause:
                total.record("total/pause", total_s)
        for gap_s in record.gaps_s:
            total.record("gap", gap_s)
        if record.server is None or record.outcome is not Outcome.ANSWERED or record.first_text_at_s is None:
            return
        for stage in ("queue", "tokenise", "prefill", "decode"):
            total.record(f"stage/{stage}", getattr(record.server, f"{stage}_ms") / 1000)
        engine_s = (record.server.queue_ms + record.server.prefill_ms) / 1000
        total.record("stage/front_end", record.first_text_at_s - record.sent_at_s - engine_s)

    def _count_error(self, record: Record, tallies: _Tallies) -> None:
        tallies.count("errors")
        tallies.count_here("errors")
        message = " ".join(record.error.split())[:_LONGEST_ERROR] or "no message"
        if message not in self._errors and len(self._errors) >= _MAX_ERRORS - 1:
            message = _OTHER_ERRORS
        self._errors.add(message)
        tallies.total.counters[f"error/{message}"] += 1

    def _is_abuser(self, record: Record) -> bool:
        return record.request.session in self._abusers

    def _tallies(self, record: Record) -> _Tallies:
        place = self._homes[record.request.session] if record.region is None else record.region
        region = NOWHERE if place == _NOWHERE else self._regions[place]
        piece = self._stats.slice_at(record.request.intended_at_s)
        return _Tallies(self._stats.total, piece, region, is_region_sliced=len(self._regions) > 1)
