"""One frame of the live view, made to the size of the terminal. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from completion_server.client.top.figures import PERCENTILES, Figures, Times
from completion_server.client.top.poll import ServerState
from completion_server.client.top.table import ALL, Row, milliseconds, percent, rows_of, server_table

_FRAME_LINES = 6
"""Lines around the rows of servers and of stages: titles, headers and gaps."""
_MIN_ROWS = 3
_DETAIL_LINES = 4
_MAX_PROBLEMS = 3
"""Lines about servers that did not answer; their rows say so, too."""

MIN_WIDTH = 40
"""Below it there is no room for a bar."""
_MIN_BAR = 10
_NAMES = {"decode_token": "decode (a token)"}
_NAME_WIDTH, _NUMBER_WIDTH = 18, 8
_SHADES = ("█", "▓", "░")
"""From the stage's begin to its p50, then to p95, then to p99."""
_STYLES = ("cyan", "blue", "bright_black")


def frame(
    states: Sequence[ServerState], at: datetime, interval_s: float, size: tuple[int, int], hint: str = ""
) -> RenderableType:
    """Return the frame for a terminal of `size`: columns and lines. Servers that do not fit are counted.

    `hint` names the keys.
    """
    width, height = size
    rows = rows_of(states)
    summary = rows[-1].figures
    num_stages = len(summary.stages_ms) if summary else 0
    problems = [_problem(state) for state in states if state.problem][:_MAX_PROBLEMS]
    room = height - _FRAME_LINES - len(problems)
    has_stages = bool(num_stages) and width >= MIN_WIDTH and room >= num_stages + min(len(rows), _MIN_ROWS)
    if has_stages:
        room -= num_stages
    has_details = summary is not None and room >= min(len(rows), _MIN_ROWS) + _DETAIL_LINES
    if has_details:
        room -= _DETAIL_LINES
    shown, hidden = _most_urgent(rows, max(1, room))
    parts: list[RenderableType] = [_title(rows, at, interval_s, hint), Text(), server_table(shown, width)]
    if hidden:
        parts.append(Text(f"and {hidden} more servers, all better than these", style="dim"))
    parts += problems
    if summary is not None and has_stages:
        parts += [Text(), stage_table(summary.stages_ms, width)]
    if summary is not None and has_details:
        parts += [Text(), *_details(summary)]
    return Group(*parts)


def _problem(state: ServerState) -> Text:
    prefix = "" if state.address in state.problem else f"{state.address}: "
    return Text(prefix + state.problem, style="red", overflow="ellipsis", no_wrap=True)


def _title(rows: Sequence[Row], at: datetime, interval_s: float, hint: str) -> Text:
    figures = rows[-1].figures
    budget = f", in time: first token within {figures.budget_ms:.0f} ms" if figures and figures.budget_ms else ""
    length_s = figures.interval_s if figures else interval_s
    waiting = "" if figures else " · figures come after a second reading"
    return Text.assemble(
        ("completion-server top", "bold"),
        (f"  {at:%H:%M:%S} · the last {length_s:.1f} s{budget}{waiting}{hint}", "dim"),
        overflow="ellipsis",
        no_wrap=True,
    )


def _most_urgent(rows: Sequence[Row], room: int) -> tuple[list[Row], int]:
    """Return the rows to show in their order, and how many are left out: those with the fewest problems."""
    if len(rows) <= room:
        return list(rows), 0
    totals = [row for row in rows if row.name == ALL]
    servers = [row for row in rows if row.name != ALL]
    kept = sorted(servers, key=_rank)[: max(1, room - len(totals) - 1)]
    return [row for row in servers if row in kept] + totals, len(servers) - len(kept)


def _rank(row: Row) -> tuple[bool, float]:
    in_time = row.figures.in_time_share if row.figures else None
    return row.states[0].is_serving, 1.0 if in_time is None else in_time


def _details(figures: Figures) -> list[Text]:
    tokens = (
        f"prefix cache {percent(figures.prefix_cache_share)} of prompt tokens, completion cache "
        f"{percent(figures.cache_hit_share)} of lookups, drafts {percent(figures.acceptance)} accepted, "
        f"{percent(figures.wasted_share)} of generated tokens wasted"
    )
    refused = f"; {figures.refused_per_s:.1f}/s refused" if figures.refused_per_s else ""
    lines = (
        ("outcomes", _shares(figures.outcomes) + refused),
        ("shed", _shares(figures.shed)),
        ("tokens", tokens),
    )
    return [
        Text.assemble((f"{name:9}", "dim"), text, overflow="ellipsis", no_wrap=True) for name, text in lines if text
    ]


def _shares(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{percent(share)} {name.replace('_', ' ')}" for name, share in ranked) or "none"


def stage_table(stages_ms: Mapping[str, Times], width: int) -> Table:
    """Return a line for each stage: its percentiles, and a bar that begins where the stages before end at p50."""
    bar_width = width - _NAME_WIDTH - len(PERCENTILES) * _NUMBER_WIDTH
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("stage", width=_NAME_WIDTH - 1, no_wrap=True)
    for share in PERCENTILES:
        table.add_column(f"p{share * 100:.0f} ms", justify="right", width=_NUMBER_WIDTH - 1, no_wrap=True)
    has_bars = bar_width >= _MIN_BAR
    if has_bars:
        table.add_column(_legend(), no_wrap=True)
    bars = _bars(stages_ms, bar_width)
    for stage, times in stages_ms.items():
        cells = [Text(_NAMES.get(stage, stage)), *(Text(milliseconds(value)) for value in times)]
        table.add_row(*cells, *([bars[stage]] if has_bars else []))
    return table


def _bars(stages_ms: Mapping[str, Times], width: int) -> dict[str, Text]:
    begins_ms, now_ms = dict[str, float](), 0.0
    for stage, times in stages_ms.items():
        begins_ms[stage] = now_ms
        now_ms += times[0] or 0.0
    ends_ms = [begins_ms[stage] + (times[-1] or 0.0) for stage, times in stages_ms.items()]
    scale = width / (max(ends_ms, default=0.0) or 1.0)
    return {stage: _bar(begins_ms[stage], times, scale) for stage, times in stages_ms.items()}


def _bar(begin_ms: float, times: Times, scale: float) -> Text:
    start = int(begin_ms * scale)
    bar = Text(" " * start)
    if times[0] is None:
        return bar
    drawn = start
    for value, shade, style in zip(times, _SHADES, _STYLES, strict=True):
        end = round((begin_ms + (value or 0.0)) * scale)
        bar.append(shade * (end - drawn), style)
        drawn = max(drawn, end)
    return bar if drawn > start else bar.append("▏", _STYLES[0])


def _legend() -> Text:
    legend = Text()
    for share, shade, style in zip(PERCENTILES, _SHADES, _STYLES, strict=True):
        legend.append(shade, style).append(f" to p{share * 100:.0f}  ", "dim")
    return legend
