"""What one front end has of its group."""

from collections.abc import Callable, Iterable

from completion_server.core.clock import Clock
from completion_server.limits.shared import SharedLimits
from completion_server.state.lanes import Announcement
from completion_server.state.local.board import LocalBoard
from completion_server.state.local.group import LocalGroup
from completion_server.state.local.lanes import LocalLanes
from completion_server.state.local.totals import LocalTotals


class LocalMember:
    """The parts of one front end that work with those of the others."""

    def __init__(
        self,
        group: LocalGroup,
        clock: Clock,
        *,
        supersede: Callable[[str, int], None],
        live: Callable[[], Iterable[tuple[Announcement, float]]],
    ) -> None:
        """Join a group; the parts must be run. `supersede` and `live` are those of `LocalLanes`.

        Raises:
            OSError: the parent has closed the group.

        """
        self.bus = group.bus()
        self.lanes = LocalLanes(self.bus, group.table(), clock, supersede=supersede, live=live)
        self.limiters = SharedLimits(LocalBoard(self.bus, group.parent), clock, group.name, group.num_front_ends)
        self.totals = LocalTotals(self.bus, group.parent, lambda: self.limiters.num_replicas)

    def counters(self) -> dict[str, Callable[[], float]]:
        """Return the counters of the parts, by metric name."""
        bus, lanes = self.bus.stats, self.lanes.stats
        return {
            "front_end_messages_sent": lambda: bus.num_sent,
            "front_end_messages_received": lambda: bus.num_received,
            "front_end_messages_lost": lambda: bus.num_lost,
            "front_end_requests_overtaken": lambda: lanes.num_overtaken,
        }
