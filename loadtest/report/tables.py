"""The tables of the terminal and of the page, made from a document, and how a terminal prints them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from loadtest.report.charts import outcomes_of, regions_of
from loadtest.report.compare import CONFIDENCE, Change, Difference, Interval, RunDifferences
from loadtest.report.document import RunDocument, TargetResult
from loadtest.report.figures import FIGURES, MAX_ERROR_RATE, PERCENTS, shown, shown_number

_MAX_ERRORS = 20
_SUMMARY: Mapping[str, str] = {
    "offered_per_s": "asked/s",
    "sent_per_s": "sent/s",
    "seen_per_s": "seen/s",
    "seen_share": "seen",
    "pause_in_time_share": "pauses in time",
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
_ALWAYS = 3
"""Rows of a summary that are shown even when empty."""
_COLOURS = {Change.BETTER: "green", Change.WORSE: "red", Change.DIFFERENT: "yellow"}


@dataclass(frozen=True, slots=True)
class Table:
    """A title, headings, and rows as wide as these. The first `num_words` columns are words, the others numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_words: int = 1


def summary(document: RunDocument) -> Table:
    """Return a column for each target, without the figures that no target has."""
    rows = []
    for place, (name, label) in enumerate(_SUMMARY.items()):
        cells = [shown(name, each.figures.get(name)) for each in document.targets]
        if document.targets and (place < _ALWAYS or any(cell != "-" for cell in cells)):
            rows.append((label, *cells))
    return Table("What editors felt", ("", *(each.name for each in document.targets)), tuple(rows))


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
    rows = []
    for name, label in _SUMMARY.items():
        if any(shown(name, each.figures.get(name)) != "-" for each in document.targets):
            note = f" ({notes[name]})" if name in notes else ""
            rows.append((label, f"{FIGURES[name].meaning}{note}"))
    return Table("What the words mean", ("", "meaning"), tuple(rows), num_words=2)


def times(target: TargetResult) -> Table:
    """Return a target's percentiles, a row for each kind of time."""
    rows = []
    for name, label in _TIMES.items():
        cells = [shown(f"{name}_ms_{suffix}", target.figures.get(f"{name}_ms_{suffix}")) for suffix in PERCENTS]
        if cells[0] != "-":
            rows.append((label, *cells))
    return Table(
        "Times, ms from the intended time", ("", *(f"p{percent:g}" for percent in PERCENTS.values())), tuple(rows)
    )


def outcomes(target: TargetResult) -> Table:
    """Return the outcomes of a target's requests, with the times of each outcome."""
    total = target.stats.total
    rows = []
    for name in outcomes_of(target.stats):
        count = total.counters[f"outcome/{name}"]
        times = [f"{what}/outcome/{name}" for what in ("ttft", "total")]
        cells = [shown_number(total.percentile_ms(each, percent)) for each in times for percent in (50, 95, 99)]
        rows.append((name.replace("_", " "), f"{count:,}", _share(count, total.counters["intended"]), *cells))
    headings = ("ended", "requests", "share", "TTFT p50", "p95", "p99", "end p50", "p95", "p99")
    return Table("How requests ended, times in ms", headings, tuple(rows))


def regions(target: TargetResult) -> Table:
    """Return a target's regions."""
    stats = target.stats
    rows = []
    for name in regions_of(stats):
        kinds = ("intended", "seen", "pauses", "pauses_in_time", "errors")
        count = {kind: stats.total.counters[f"region/{name}/{kind}"] for kind in kinds}
        per_s = [count[kind] / stats.duration_s if stats.duration_s else math.nan for kind in ("intended", "seen")]
        shares = (_share(count["pauses_in_time"], count["pauses"]), _share(count["errors"], count["intended"]))
        cells = [shown_number(stats.total.percentile_ms(f"ttft/region/{name}", percent)) for percent in (50, 95, 99)]
        rows.append((name, *map(shown_number, per_s), *shares, *cells))
    headings = ("region", "asked/s", "seen/s", "pauses in time", "errors", "TTFT p50, ms", "p95", "p99")
    return Table("Regions", headings, tuple(rows))


def _share(part: int, whole: int) -> str:
    return shown("seen_share", part / whole if whole else None)


def errors(target: TargetResult) -> Table:
    """Return errors by frequency, and the reasons of shed requests."""
    counters = target.stats.total.counters
    rows = [
        (f"{label}{name.removeprefix(prefix)}", f"{count:,.0f}")
        for prefix, label in (("error/", ""), ("shed_reason/", "shed: "))
        for name, count in sorted(counters.items(), key=lambda item: -item[1])
        if name.startswith(prefix) and count
    ]
    return Table("Errors and reasons", ("what", "requests"), tuple(rows[:_MAX_ERRORS]))


def gates(document: RunDocument) -> Table:
    """Return each gate at each target."""
    rows = tuple(
        ("passed" if verdict.is_met else "FAILED", each.name, str(verdict.condition), verdict.said)
        for each in document.targets
        for verdict in each.verdicts
    )
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
    names = [name for name in targets[0].figures if any(shown(name, each.figures.get(name)) != "-" for each in targets)]
    rows = tuple((name, *(shown(name, each.figures.get(name)) for each in targets)) for name in names)
    return Table("All figures", ("figure", *(each.name for each in targets)), rows)


def print_report(document: RunDocument, console: Console) -> None:
    """Print a run's result: warnings first, gates last."""
    for trouble in troubles(document):
        console.print(Text(trouble, style="bold red"))
    name, sessions = document.scenario.get("name", "?"), document.scenario.get("sessions", "?")
    console.print(Text(f"{name}: {sessions} sessions, {document.started_at}, trace {document.schedule_digest[:12]}"))
    print_table(summary(document), console)
    for target in document.targets:
        console.rule(Text(f"{target.name}  {target.uri}"), align="left")
        for each in (times(target), outcomes(target), regions(target), errors(target)):
            if each.rows:
                print_table(each, console)
    if document.gates:
        print_table(gates(document), console)


def print_table(table: Table, console: Console) -> None:
    """Print a table with words aligned left and numbers right."""
    found = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(table.headings):
        found.add_column(escape(heading), justify="left" if place < table.num_words else "right", overflow="fold")
    for row in table.rows:
        found.add_row(*(_cell(text) for text in row))
    console.print(found)


def print_differences(differences: RunDifferences, console: Console, confidence: float = CONFIDENCE) -> None:
    """Print the differences beyond noise, and the figures without one."""
    for warning in differences.warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"))
    how = "paired" if differences.is_paired else "unpaired"
    heading = f"A = {differences.first}, B = {differences.second}; {how}, {differences.num_slices} slices"
    found = RichTable(title=escape(heading), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("figure", "A", "B", "B - A", "B / A", ""):
        is_word = name in {"figure", ""}
        found.add_column(name, justify="left" if is_word else "right", no_wrap=is_word)
    for each in _changed_first(differences.differences):
        found.add_row(
            each.figure,
            shown(each.figure, each.first),
            shown(each.figure, each.second),
            _span(each.difference, partial(shown, each.figure)),
            _span(each.ratio, shown_number),
            Text(each.change.value, style=_COLOURS.get(each.change, "dim")),
        )
    console.print(found)
    share = f"{1 - confidence:.2g}"
    console.print(Text(f"Of figures that are equal in truth, a share of about {share} looks changed.", style="dim"))


def _span(interval: Interval, show: Callable[[float], str]) -> str:
    return "-" if math.isnan(interval.low) else f"{show(interval.low)} to {show(interval.high)}"


def _changed_first(differences: Sequence[Difference]) -> list[Difference]:
    order = [Change.WORSE, Change.BETTER, Change.DIFFERENT, Change.WITHIN_NOISE, Change.UNKNOWN]
    return sorted(differences, key=lambda each: order.index(each.change))


def _cell(text: str) -> Text:
    return Text(text, style={"FAILED": "bold red", "passed": "green"}.get(text, ""))
