"""The stage waterfall: where the time of the interval's requests went, by percentile. Pure."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from completion_server.client.top.figures import PERCENTILES, Times
from completion_server.client.top.table import milliseconds

MIN_WIDTH = 40
"""Below it there is no room for a bar."""
_MIN_BAR = 10
_NAMES = {"decode_token": "decode (a token)"}
_NAME_WIDTH, _NUMBER_WIDTH = 18, 8
_SHADES = ("█", "▓", "░")
"""From the stage's begin to its p50, then to p95, then to p99."""
_STYLES = ("cyan", "blue", "bright_black")


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
