"""The tables of the terminal and of the page, made from a document, and how a terminal prints them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from loadtest.report.charts import outcomes_of, regions_of
from loadtest.report.compare import RunDifferences
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.figures import FIGURES, MAX_ERROR_RATE, PERCENTS, shown, shown_number
from loadtest.stats import Tally

_MAX_ERRORS = 20
_SUMMARY: Mapping[str, str] = {
    "offered_per_s": "asked/s",
    "sent_per_s": "sent/s",
    "seen_per_s": "seen/s",
    "seen_share": "seen",
    "pause_in_time_share": "pauses in time",
    "pause_right_share": "pauses with the right line",
    "good_per_s": "in SLO/s",
    "accepted_chars_per_s": "accepted chars/s",
    "edit_share": "with an edit",
    "shed_share": "shed",
    "superseded_share": "superseded",
    "hung_up_share": "hung up",
    "error_rate": "errors",
    "wasted_token_share": "wasted tokens",
    "usd_per_completion": "USD/completion",
    "sessions": "sessions",
    "sessions_lost": "lost",
}
_TIMES: Mapping[str, str] = {
    "pause_ttft": "TTFT, pauses",
    "ttft": "TTFT, all",
    "pause_total": "to the end, pauses",
    "total": "to the end, all",
    "gap": "between texts",
    "front_end": "front end",
    "reconnect": "reconnecting",
    "lag": "generator's lag",
}
_STYLES = {"FAILED": "bold red", "passed": "green", "better": "green", "worse": "red", "different": "yellow"}
"""Colours of cells with these words."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, headings, and rows as wide as these. The first `num_words` columns are words, the others numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_words: int = 1


def summary(document: RunDocument) -> Table:
    """Return a column for each target, without the figures that no target has."""
    rows = [(label, *_cells(document.targets, name)) for name, label in _SUMMARY.items() if _has(document, name)]
    return Table("What editors felt", ("", *(each.name for each in document.targets)), rows)


def terms(document: RunDocument) -> Table:
    """Return what the words of the summary mean, with the limits of this run."""
    criteria = document.criteria
    pause_ms = document.scenario.get("typing", {}).get("pause_ms", 500)
    notes = {
        "offered_per_s": "those that the editor answered from its cache or never sent are included",
        "seen_per_s": f"within {criteria.within_ms:g} ms, and {criteria.before_next_key_ms:g} ms before the next key",
        "pause_in_time_share": f"a pause is a wait of {pause_ms:g} ms or more; in time is {criteria.within_ms:g} ms",
        "good_per_s": f"SLO: text in {criteria.slo_ttft_ms:g} ms, end in {criteria.slo_total_ms:g} ms",
        "hung_up_share": "the user typed on before the answer had ended",
    }
    rows = [
        (label, FIGURES[name].meaning + (f" ({notes[name]})" if name in notes else ""))
        for name, label in _SUMMARY.items()
        if _has(document, name)
    ]
    return Table("What the words mean", ("", "meaning"), rows, num_words=2)


def _cells(targets: Sequence[TargetResult], name: str) -> list[str]:
    return [shown(name, each.figures.get(name)) for each in targets]


def _has(document: RunDocument, name: str) -> bool:
    return any(cell != "-" for cell in _cells(document.targets, name))


def of_target(target: TargetResult) -> tuple[Table, ...]:
    """Return the tables of one target."""
    return _times(target), _outcomes(target), _regions(target), _errors(target)


def _times(target: TargetResult) -> Table:
    """Return percentiles, a row for each kind of time."""
    rows = []
    for name, label in _TIMES.items():
        cells = [shown(each, target.figures.get(each)) for each in (f"{name}_ms_{suffix}" for suffix in PERCENTS)]
        if cells[0] != "-":
            rows.append((label, *cells))
    return Table("Times, ms from the intended time", ("", *(f"p{each:g}" for each in PERCENTS.values())), rows)


def _outcomes(target: TargetResult) -> Table:
    """Return the outcomes of the requests, with the times of each outcome."""
    total = target.stats.total
    rows = []
    for name in outcomes_of(target.stats):
        count = total.counters[f"outcome/{name}"]
        times = _percentiles(total, f"ttft/outcome/{name}") + _percentiles(total, f"total/outcome/{name}")
        rows.append((name.replace("_", " "), f"{count:,}", _share(count, total.counters["intended"]), *times))
    headings = ("ended", "requests", "share", "TTFT p50", "p95", "p99", "end p50", "p95", "p99")
    return Table("How requests ended, times in ms", headings, rows)


def _regions(target: TargetResult) -> Table:
    stats = target.stats
    rows = []
    for name in regions_of(stats):
        kinds = ("intended", "seen", "pauses", "pauses_in_time", "errors")
        intended, seen, pauses, in_time, errors = (stats.total.counters[f"region/{name}/{kind}"] for kind in kinds)
        per_s = [shown_number(each / stats.duration_s) if stats.duration_s else "-" for each in (intended, seen)]
        shares = (_share(in_time, pauses), _share(errors, intended))
        rows.append((name, *per_s, *shares, *_percentiles(stats.total, f"ttft/region/{name}")))
    headings = ("region", "asked/s", "seen/s", "pauses in time", "errors", "TTFT p50, ms", "p95", "p99")
    return Table("Regions", headings, rows)


def _errors(target: TargetResult) -> Table:
    """Return errors by frequency, and the reasons of shed requests."""
    rows = [
        (f"{label}{name.removeprefix(prefix)}", f"{count:,.0f}")
        for prefix, label in (("error/", ""), ("shed_reason/", "shed: "))
        for name, count in target.stats.total.counters.most_common()
        if name.startswith(prefix) and count
    ]
    return Table("Errors and reasons", ("what", "requests"), rows[:_MAX_ERRORS])


def _percentiles(total: Tally, histogram: str) -> list[str]:
    return [shown_number(total.percentile_ms(histogram, percent)) for percent in (50, 95, 99)]


def _share(part: int, whole: int) -> str:
    return shown("seen_share", part / whole if whole else None)


def gates(document: RunDocument) -> Table:
    """Return each gate at each target."""
    rows = [
        ("passed" if verdict.is_met else "FAILED", each.name, str(verdict.gate), verdict.said)
        for each in document.targets
        for verdict in each.gates
    ]
    return Table("Gates", ("", "target", "gate", "found"), rows, num_words=3)


def troubles(document: RunDocument) -> tuple[str, ...]:
    """Return the warnings that precede the figures."""
    found = [f"{each.name}: INVALID, {reason}" for each in document.targets for reason in each.invalid_because]
    found += [
        f"{each.name}: FAILED, {shown('error_rate', each.figures['error_rate'])} of the requests failed, more than "
        f"{MAX_ERROR_RATE:.0%}; --gate 'error_rate<NUMBER' sets another limit"
        for each in document.with_too_many_errors
    ]
    if document.interrupted:
        found.append("the run was interrupted; the figures are of what there is")
    return tuple(found)


def all_figures(targets: Sequence[TargetResult]) -> Table:
    """Return every figure that a target has, one column for each target."""
    rows = [(name, figure.meaning, *_cells(targets, name)) for name, figure in FIGURES.items()]
    rows = [row for row in rows if any(cell != "-" for cell in row[2:])]
    return Table("All figures", ("figure", "meaning", *(each.name for each in targets)), rows, num_words=2)


def print_report(document: RunDocument, console: Console) -> None:
    """Print a run's result: warnings first, gates last."""
    for trouble in troubles(document):
        console.print(Text(trouble, style="bold red"))
    name, sessions = document.scenario.get("name", "?"), document.scenario.get("sessions", "?")
    console.print(Text(f"{name}: {sessions} sessions, {document.started_at}, trace {document.schedule_digest[:12]}"))
    print_table(summary(document), console)
    for target in document.targets:
        console.rule(Text(f"{target.name}  {target.uri}"), align="left")
        for each in of_target(target):
            print_table(each, console)
    print_table(gates(document), console)


def print_table(table: Table, console: Console) -> None:
    """Print a table that has rows, with words aligned left and numbers right."""
    found = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(table.headings):
        found.add_column(escape(heading), justify="left" if place < table.num_words else "right", overflow="fold")
    for row in table.rows:
        found.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row))
    if table.rows:
        console.print(found)


def print_differences(found: RunDifferences, console: Console) -> None:
    """Print the differences beyond noise, and the figures without one."""
    for warning in found.warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    rows = [
        (
            name,
            *(shown(name, value) for value in (each.first, each.second)),
            _span(*(shown(name, end) for end in each.difference)),
            _span(*(shown_number(end) for end in each.ratio)),
            each.change,
        )
        for each in found.differences
        for name in (each.figure,)
    ]
    how = "paired" if found.is_paired else "unpaired"
    title = f"A = {found.first}, B = {found.second}; {how}, {found.num_slices} slices"
    print_table(Table(title, ("figure", "A", "B", "B - A", "B / A", ""), rows), console)
    share = f"{1 - found.confidence:.2g}"
    console.print(Text(f"Of figures that are equal in truth, a share of about {share} looks changed.", style="dim"))


def _span(low: str, high: str) -> str:
    return low if low == high == "-" else f"{low} to {high}"
