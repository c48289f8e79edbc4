"""The requests that have to end for lack of time, and when to look for them again. Pure."""

from collections.abc import Mapping

from completion_server.scheduling.live.records import LiveRequest, State, Ticks
from completion_server.scheduling.shedding import Shedder


class DeadlineWatch:
    """Watches the deadlines of live requests."""

    def __init__(self, shedder: Shedder, records: Mapping[str, LiveRequest]) -> None:
        """Watch none at first; `records` has all requests by their ids."""
        self._shedder = shedder
        self._records = records
        self._ticks = Ticks(self._is_live)
        self._past_budget: dict[str, LiveRequest] = {}

    @property
    def next(self) -> float | None:
        """The latest time for the next look, None if no request may have to end."""
        return self._ticks.next

    @property
    def past_budget(self) -> list[LiveRequest]:
        """Requests past their budget that keep a slot without a token, because no other request waits; oldest first."""
        return list(self._past_budget.values())

    def add(self, record: LiveRequest, now: float | None = None) -> None:
        """Look at a request when it may have to end. `now` is None for one that has just changed its state."""
        self._ticks.add(self._shedder.next_look(record, now), record.entry.id, len(self._records))

    def forgive(self, record: LiveRequest) -> None:
        """Note that a request has no slot, or has its first token, and so is not past its budget."""
        self._past_budget.pop(record.entry.id, None)

    def pop_due(self, now: float) -> LiveRequest | None:
        """Return a request that has to end now, past its deadline or unreachable."""
        while (request_id := self._ticks.pop_due(now)) is not None:
            record = self._records.get(request_id)
            if record is None or record.state is State.ABORTING:
                continue
            if record.entry.deadline.is_past(now) or self._shedder.is_unreachable(record, now):
                return record
            if record.state is State.RUNNING and not record.has_token and now >= record.entry.ttft_deadline:
                self._past_budget[request_id] = record
            self.add(record, now)
        return None

    def _is_live(self, request_id: str) -> bool:
        record = self._records.get(request_id)
        return record is not None and record.state is not State.ABORTING
