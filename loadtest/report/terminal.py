"""Prints the tables of a run and of a comparison in a terminal."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from loadtest.report import tables
from loadtest.report.compare import CONFIDENCE, Change, Comparison, Difference, Interval
from loadtest.report.document import RunDocument
from loadtest.report.figures import shown, shown_number

_COLOURS = {Change.BETTER: "green", Change.WORSE: "red", Change.DIFFERENT: "yellow"}


def print_report(document: RunDocument, console: Console) -> None:
    """Print a run's result: warnings first, gates last."""
    for trouble in tables.troubles(document):
        console.print(Text(trouble, style="bold red"))
    name, sessions = document.scenario.get("name", "?"), document.scenario.get("sessions", "?")
    console.print(Text(f"{name}: {sessions} sessions, {document.started_at}, trace {document.schedule_digest[:12]}"))
    print_table(tables.summary(document), console)
    for target in document.targets:
        console.rule(Text(f"{target.name}  {target.uri}"), align="left")
        for each in (tables.times(target), tables.outcomes(target), tables.regions(target), tables.errors(target)):
            if each.rows:
                print_table(each, console)
    if document.gates:
        print_table(tables.gates(document), console)


def print_table(table: tables.Table, console: Console) -> None:
    """Print a table with words aligned left and numbers right."""
    found = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(table.headings):
        found.add_column(escape(heading), justify="left" if place < table.num_words else "right", overflow="fold")
    for row in table.rows:
        found.add_row(*(_cell(text) for text in row))
    console.print(found)


def print_comparison(comparison: Comparison, console: Console, confidence: float = CONFIDENCE) -> None:
    """Print the differences beyond noise, and the figures without one."""
    for warning in comparison.warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    how = "paired" if comparison.is_paired else "unpaired"
    heading = f"A = {comparison.first}, B = {comparison.second}; {how}, {comparison.num_slices} slices"
    found = RichTable(title=escape(heading), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("figure", "A", "B", "B - A", "B / A", ""):
        is_word = name in {"figure", ""}
        found.add_column(name, justify="left" if is_word else "right", no_wrap=is_word)
    for each in _changed_first(comparison.differences):
        found.add_row(
            each.figure,
            shown(each.figure, each.first),
            shown(each.figure, each.second),
            difference_text(each),
            ratio_text(each.ratio),
            Text(each.change.value, style=_COLOURS.get(each.change, "dim")),
        )
    console.print(found)
    share = f"{1 - confidence:.2g}"
    console.print(Text(f"Of figures that are equal in truth, a share of about {share} looks changed.", style="dim"))


def difference_text(each: Difference) -> str:
    """Return the interval of a difference in the figure's unit."""
    interval = each.difference
    if math.isnan(interval.low):
        return "-"
    return f"{shown(each.figure, interval.low)} to {shown(each.figure, interval.high)}"


def ratio_text(interval: Interval) -> str:
    """Return the interval of a ratio."""
    if math.isnan(interval.low):
        return "-"
    return f"{shown_number(interval.low)} to {shown_number(interval.high)}"


def _changed_first(differences: Sequence[Difference]) -> list[Difference]:
    order = [Change.WORSE, Change.BETTER, Change.DIFFERENT, Change.WITHIN_NOISE, Change.UNKNOWN]
    return sorted(differences, key=lambda each: order.index(each.change))


def _cell(text: str) -> Text:
    return Text(text, style={"FAILED": "bold red", "passed": "green"}.get(text, ""))
