"""Records the results of requests as counters and histograms. It keeps no request.

Two kinds of requests are left out of the figures of typed requests: a prefetch, for which no user waits, counts as
intended, sent and ended only; an abuser's requests count under `abuser/` only. The histogram `total` has the times of
whole answers; the times of all others are under their outcome.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadtest.stats import RunStats, Tally
from loadtest.targets.editor import accepted_chars
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
class _AnswerValue:
    """The value of an answer to its user."""

    ttft_s: float | None
    total_s: float
    is_in_time: bool
    is_seen: bool
    is_good: bool


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
        total, piece = self._tallies(record)
        _count(total, piece, "intended")
        if record.request.trigger is Trigger.PREFETCH:
            total.counters["prefetches"] += 1

    def ended(self, record: Record) -> None:
        """Record the end of a request."""
        assert record.outcome is not None
        outcome = record.outcome.value
        if self._is_abuser(record):
            self._stats.total.counters[f"abuser/outcome/{outcome}"] += 1
            return
        total, piece = self._tallies(record)
        _count(total, piece, f"outcome/{outcome}")
        self._count_region(record, total, piece, "intended")
        if record.is_sent:
            _count(total, piece, "sent")
            total.record("lag", record.sent_at_s - record.request.intended_at_s)
        total.counters["tokens"] += record.completion_tokens
        total.counters["messages"] += record.num_messages
        self._count_kind(record, total, piece)
        if record.request.trigger is not Trigger.PREFETCH:
            self._judge(record, total, piece)

    def _count_kind(self, record: Record, total: Tally, piece: Tally) -> None:
        """Count what only some requests have."""
        if record.outcome is Outcome.ERROR:
            self._count_error(record, total, piece)
        if record.cache_level:
            _count(total, piece, f"cache/{record.cache_level}")
        if record.num_sent > 1:
            _count(total, piece, "resent")
        if record.num_duplicates:
            _count(total, piece, "duplicates", record.num_duplicates)
        if record.shed_reason:
            total.counters[f"shed_reason/{record.shed_reason}"] += 1

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
        if num_tokens == num_tokens:  # noqa: PLR0124 - not nan
            self._stats.total.counters["generated_tokens"] += round(num_tokens)

    def _judge(self, record: Record, total: Tally, piece: Tally) -> None:
        value = self._value_of(record)
        if record.request.is_pause:
            _count(total, piece, "pauses")
            self._count_region(record, total, piece, "pauses")
        if value.ttft_s is not None:
            self._record_text(record, value, total, piece)
        self._record_times(record, value, total)
        if value.is_good:
            _count(total, piece, "good")
        if value.is_seen:
            _count(total, piece, "seen")
            self._count_region(record, total, piece, "seen")
            total.counters["seen_tokens"] += record.completion_tokens
            accepted = accepted_chars(record.text, record.request, self._criteria.accepts_min_chars)
            _count(total, piece, "accepted_chars", accepted)

    def _record_text(self, record: Record, value: _AnswerValue, total: Tally, piece: Tally) -> None:
        assert record.outcome is not None
        assert value.ttft_s is not None
        is_asked = record.outcome is not Outcome.CACHED  # a cached answer says nothing of the target
        total.record(f"ttft/outcome/{record.outcome.value}", value.ttft_s)
        if is_asked:
            _time(total, piece, "ttft", value.ttft_s)
            name = f"ttft/region/{self._region(record)}"
            total.record(name, value.ttft_s)
            if len(self._regions) > 1:
                piece.record(name, value.ttft_s)
        _count(total, piece, "shown")
        total.counters["shown_chars"] += len(record.text)
        if value.is_in_time:
            _count(total, piece, "in_time")
        if record.request.is_pause:
            if is_asked:
                _time(total, piece, "ttft/pause", value.ttft_s)
            if value.is_in_time:
                _count(total, piece, "pauses_in_time")
                self._count_region(record, total, piece, "pauses_in_time")

    def _record_times(self, record: Record, value: _AnswerValue, total: Tally) -> None:
        assert record.outcome is not None
        total.record(f"total/outcome/{record.outcome.value}", value.total_s)
        if record.outcome in _SHOWN and record.outcome is not Outcome.CACHED:
            total.record("total", value.total_s)
            if record.request.is_pause:
                total.record("total/pause", value.total_s)
        for gap_s in record.gaps_s:
            total.record("gap", gap_s)
        if record.server is None or record.outcome is not Outcome.ANSWERED or record.first_text_at_s is None:
            return
        server = record.server
        total.record("stage/queue", server.queue_ms / 1000)
        total.record("stage/tokenise", server.tokenise_ms / 1000)
        total.record("stage/prefill", server.prefill_ms / 1000)
        total.record("stage/decode", server.decode_ms / 1000)
        engine_s = (server.queue_ms + server.prefill_ms) / 1000
        total.record("stage/front_end", record.first_text_at_s - record.sent_at_s - engine_s)

    def _value_of(self, record: Record) -> _AnswerValue:
        criteria, request = self._criteria, record.request
        text_at_s = record.first_text_at_s
        assert record.ended_at_s is not None
        total_s = (request.intended_at_s if record.outcome is Outcome.CACHED else record.ended_at_s) - (
            request.intended_at_s
        )
        if text_at_s is None:
            return _AnswerValue(None, total_s, is_in_time=False, is_seen=False, is_good=False)
        ttft_s = text_at_s - request.intended_at_s
        is_in_time = ttft_s <= criteria.within_ms / 1000
        stands_s = request.next_key_at_s - text_at_s
        is_soon = ttft_s <= criteria.slo_ttft_ms / 1000 and total_s <= criteria.slo_total_ms / 1000
        return _AnswerValue(
            ttft_s,
            total_s,
            is_in_time=is_in_time,
            is_seen=is_in_time and stands_s >= criteria.before_next_key_ms / 1000,
            is_good=is_soon and record.outcome in _SHOWN,
        )

    def _count_error(self, record: Record, total: Tally, piece: Tally) -> None:
        _count(total, piece, "errors")
        self._count_region(record, total, piece, "errors")
        message = " ".join(record.error.split())[:_LONGEST_ERROR] or "no message"
        if message not in self._errors and len(self._errors) >= _MAX_ERRORS - 1:
            message = _OTHER_ERRORS
        self._errors.add(message)
        total.counters[f"error/{message}"] += 1

    def _is_abuser(self, record: Record) -> bool:
        return record.request.session in self._abusers

    def _region(self, record: Record) -> str:
        """Return the region that served a request, or had to."""
        place = self._homes[record.request.session] if record.region is None else record.region
        return NOWHERE if place == _NOWHERE else self._regions[place]

    def _count_region(self, record: Record, total: Tally, piece: Tally, name: str) -> None:
        """Count a request in its region, and by time if there are several."""
        full = f"region/{self._region(record)}/{name}"
        total.counters[full] += 1
        if len(self._regions) > 1:
            piece.counters[full] += 1

    def _tallies(self, record: Record) -> tuple[Tally, Tally]:
        """Return the tally of the run and that of the slice of the request's intended time."""
        return self._stats.total, self._stats.slice_at(record.request.intended_at_s)


def _count(total: Tally, piece: Tally, name: str, amount: int = 1) -> None:
    total.counters[name] += amount
    piece.counters[name] += amount


def _time(total: Tally, piece: Tally, name: str, seconds: float) -> None:
    total.record(name, seconds)
    piece.record(name, seconds)
