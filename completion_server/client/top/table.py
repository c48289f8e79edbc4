"""The table of servers: one row each, and one for all together, with as many columns as fit. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from completion.v1 import admin_pb2
from completion_server.client.output import engine_state
from completion_server.client.top.figures import Figures, IntervalChange, figures_of
from completion_server.client.top.poll import ServerState

ALL = "all"
NOTHING = "·"
"""Stands for a figure without data."""
_GAP = 2
_POOR, _BAD = 0.99, 0.95
"""Below these shares of requests in time, a cell is yellow or red: the objective is 95%."""


@dataclass(frozen=True, slots=True)
class Row:
    """A server, or all of them, and the figures of the interval."""

    name: str
    states: Sequence[ServerState]
    """One server, or all."""
    figures: Figures | None


def rows_of(states: Sequence[ServerState]) -> list[Row]:
    """Return a row for each server and, with several, one for all together."""
    rows = [Row(state.address, (state,), figures_of([state.change] if state.change else [])) for state in states]
    if len(states) > 1:
        rows.append(Row(ALL, tuple(states), figures_of(changes_of(states))))
    return rows


def changes_of(states: Sequence[ServerState]) -> list[IntervalChange]:
    """Return the changes of those servers that have any."""
    return [state.change for state in states if state.change is not None]


def server_table(rows: Sequence[Row], width: int) -> Table:
    """Return the table with the most important columns that fit into `width` cells."""
    cells = {column.title: [column.cell(row) for row in rows] for column in _COLUMNS}
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold", pad_edge=False, collapse_padding=False)
    shown = _fitting(cells, width)
    for column in shown:
        table.add_column(column.title, justify="left" if column.is_name else "right", no_wrap=True)
    for place, row in enumerate(rows):
        table.add_row(*(cells[column.title][place] for column in shown), style="bold" if row.name == ALL else "")
    return table


def _fitting(cells: dict[str, list[Text]], width: int) -> list["_Column"]:
    """Return the columns that fit, in their order; the first one always does."""
    left, chosen = width + _GAP, set[str]()
    for column in sorted(_COLUMNS, key=lambda each: each.priority):
        if not any(text.plain not in {"", NOTHING} for text in cells[column.title]) and column.is_optional:
            continue
        needed = max(cell_len(column.title), *(text.cell_len for text in cells[column.title])) + _GAP
        if needed > left and chosen:
            break
        left -= needed
        chosen.add(column.title)
    return [column for column in _COLUMNS if column.title in chosen]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table."""

    title: str
    priority: int
    """The smallest is the last to go on a narrow terminal."""
    cell: Callable[[Row], Text]
    is_name: bool = False
    is_optional: bool = False
    """Whether it is left out if no server has anything to show in it."""


def _of_figures(show: Callable[[Figures], str]) -> Callable[[Row], Text]:
    return lambda row: Text(NOTHING if row.figures is None else show(row.figures))


def _of_status(show: Callable[[Sequence[admin_pb2.GetStatusResponse]], str]) -> Callable[[Row], Text]:
    def cell(row: Row) -> Text:
        known = [state.status for state in row.states if state.status is not None]
        return Text(show(known) if known else NOTHING)

    return cell


def _health(row: Row) -> Text:
    num_serving = sum(state.is_serving for state in row.states)
    if row.name == ALL:
        return Text(f"{num_serving}/{len(row.states)} serving", style="green" if num_serving else "red")
    (state,) = row.states
    if state.status is None:
        return Text("down", style="bold red")
    word = "draining" if state.status.draining else state.health.lower().replace("_", " ")
    return Text(word, style="green" if state.is_serving else "bold red")


def _region(row: Row) -> Text:
    regions = {state.status.region for state in row.states if state.status is not None and state.status.region}
    if row.name != ALL:
        return Text(next(iter(regions), ""))
    return Text(f"{len(regions)} regions" if len(regions) > 1 else next(iter(regions), ""))


def _engine(row: Row) -> Text:
    states = [state.status for state in row.states if state.status is not None]
    if not states:
        return Text(NOTHING)
    num_restarts = sum(status.engine_restarts for status in states)
    restarts = f", {num_restarts} restarts" if num_restarts else ""
    if row.name == ALL:
        num_ready = sum(status.engine_state == admin_pb2.ENGINE_STATE_READY for status in states)
        return Text(f"{num_ready} ready{restarts}")
    return Text(engine_state(states[0]) + restarts)


def _in_time(row: Row) -> Text:
    share = row.figures.in_time_share if row.figures else None
    if share is None:
        return Text(NOTHING)
    return Text(percent(share), style="red" if share < _BAD else "yellow" if share < _POOR else "green")


def _k(figures: Figures) -> str:
    if figures.num_speculative_tokens is None:
        return NOTHING
    least, most = figures.num_speculative_tokens
    return f"{most}" if least == most else f"{least}–{most}"


def breaker(status: admin_pb2.GetStatusResponse) -> str:
    """Return whether the breaker of Redis is closed; "" for a server without Redis."""
    if not status.HasField("replication"):
        return ""
    return "closed" if status.replication.redis_available else "open"


def _breaker(row: Row) -> Text:
    found = [each for state in row.states if state.status is not None and (each := breaker(state.status))]
    num_open = found.count("open")
    word = (f"{num_open} open" if row.name == ALL else "open") if num_open else "closed"
    return Text(word if found else "", style="bold red" if num_open else "")


def percent(share: float | None) -> str:
    """Return a share as a percentage; with a decimal between 90% and 100%, where it matters."""
    if share is None:
        return NOTHING
    return f"{share:.1%}" if 0.9 <= share < 1.0 else f"{share:.0%}"  # noqa: PLR2004 - see above


def milliseconds(value: float | None) -> str:
    """Return a time with two or three digits."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"  # noqa: PLR2004


_COLUMNS = (
    _Column("server", 0, lambda row: Text(row.name), is_name=True),
    _Column("region", 8, _region, is_name=True, is_optional=True),
    _Column("health", 1, _health, is_name=True),
    _Column("engine", 13, _engine, is_name=True),
    _Column("sessions", 9, _of_status(lambda all_: str(sum(each.live_sessions for each in all_)))),
    _Column("req/s", 2, _of_figures(lambda figures: f"{figures.requests_per_s:.1f}")),
    _Column("in time", 3, _in_time),
    _Column("p50 ms", 6, _of_figures(lambda figures: milliseconds(figures.ttft_ms[0]))),
    _Column("p95", 4, _of_figures(lambda figures: milliseconds(figures.ttft_ms[1]))),
    _Column("p99", 7, _of_figures(lambda figures: milliseconds(figures.ttft_ms[2]))),
    _Column("queue", 5, _of_status(lambda all_: str(sum(each.queued_requests for each in all_)))),
    _Column(
        "slots", 10,
        _of_status(lambda all_: f"{sum(each.running_requests for each in all_)}/{sum(each.slots for each in all_)}"),
    ),
    _Column("shed", 11, _of_figures(lambda figures: percent(sum(figures.shed.values())))),
    _Column("cache", 12, _of_figures(lambda figures: percent(figures.cache_hit_share))),
    _Column("K", 14, _of_figures(_k)),
    _Column("accept", 15, _of_figures(lambda figures: percent(figures.acceptance))),
    _Column("wasted", 16, _of_figures(lambda figures: percent(figures.wasted_share))),
    _Column("kv", 17, _of_figures(lambda figures: percent(figures.kv_usage))),
    _Column("breaker", 18, _breaker, is_name=True, is_optional=True),
)  # fmt: skip
"""In the order in which they are shown."""
