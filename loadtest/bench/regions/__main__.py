"""Measures what users notice when the nearest of three regions is lost, and when it comes back.

Three real servers with the scripted engine at a large model's service times (45 ms for a prompt, 8 ms for a step), each
behind a relay process with its own round trip; 1,000 editors that use the region-aware client of completion_client, all
in one process, which shares what it measures between them. All run on one machine.

In mid-typing the nearest server is killed (SIGKILL) or suspended (SIGSTOP); later a new one can be reached at the same
address (it was started in advance, since a start takes CPU time from all others), or the suspended one goes on. The
gates say what is expected; the command ends with 1 if one is not met, and with 3 if the generator itself was late: its
lateness counts as the servers' then.

- The next request of a user is the first after the loss for which the user waits 300 ms or longer.
- In flight are requests that were sent before the loss and had not ended. Lost are requests that failed.
- Users who come back count from the first of them on: the client finds out by a check that the region is there again.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadtest.bench.regions.course import Course, Loss, RegionSite, follow
from loadtest.bench.regions.figures import figures, gates, invalid_because
from loadtest.bench.regions.report import Finding, as_json, page, picture, report
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.schedule import started_together
from loadtest.commands.outcome import NEW_FILE, Exit
from loadtest.driving.worker_pool import check
from loadtest.report.document import Verdict
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, parse_target
from loadtest.traffic.scenario import Scenario, ScenarioError
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace

ROUND_TRIPS_MS = (5.0, 70.0, 140.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    sessions: int = option(1000, "Editors.", click.IntRange(1))
    pace: float = option(20.0, "How many times as slow as people they type.", click.FloatRange(0.1))
    loss: str = option(
        Loss.KILL.value, "Kill the nearest server, or suspend it.", click.Choice([each.value for each in Loss])
    )
    lost_at: float | None = option(None, "When, in seconds.  [default: as in the scenario]", click.FloatRange(0.5))
    away: float | None = option(None, "For how long.  [default: as in the scenario]", click.FloatRange(0.5))
    seconds: float | None = option(None, "Length of the run.  [default: as in the scenario]", click.FloatRange(2))
    return_spread: float = option(
        30.0, "Seconds over which users return; the client's own default.", click.FloatRange(0.1)
    )
    seed: int = option(0, "Who types what and when.", int)
    picture: Path | None = option(None, "Write the picture, an SVG file.", NEW_FILE)
    html: Path | None = option(None, "Write a page with pictures.", NEW_FILE)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
    """Lose the nearest of three regions while editors type. The last line is a JSON object.

    Ends with 0 if every gate is met, with 1 if one is not, and with 3 if the generator was late.

    \b
    Example:
        python -m loadtest.bench.regions --picture docs/images/region-loss.svg
        python -m loadtest.bench.regions --loss silence --sessions 200
    """
    finding = _measure(options, console)
    if options.picture is not None:
        options.picture.write_text(picture(finding), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(page(finding), encoding="utf-8")
    code = Exit.INVALID if finding.invalid_because else Exit.WELL if finding.is_passed else Exit.GATE_FAILED
    return Result(as_json(finding), report(finding), code)


def _measure(options: _Options, console: Console) -> Finding:
    loss, scenario, spread_s = Loss(options.loss), _scenario(options), options.return_spread
    round_trips_ms = dict(zip((region.name for region in scenario.regions), ROUND_TRIPS_MS, strict=True))
    stats = RunStats("regions", scenario.duration_s, scenario.slice_s)
    console.print(f"making the keys of {scenario.sessions:,} editors", style="dim")
    trace = make_trace(scenario)
    console.print(f"starting {len(round_trips_ms)} servers", style="dim")
    makers = [
        partial(RegionSite, name, round_trip_ms, options.config, options.overrides, None if place else loss)
        for place, (name, round_trip_ms) in enumerate(round_trips_ms.items())
    ]
    with started_together(makers) as sites:
        course = _follow(loss, scenario, trace, sites, spread_s, stats, console)
    found = figures(course, scenario.criteria, spread_s)
    verdicts = [Verdict(each, found.get(each.figure, math.nan)) for each in gates(spread_s, scenario.criteria)]
    return Finding(scenario, round_trips_ms, loss, options.pace, course, stats, found, verdicts, invalid_because(found))


def _follow(
    loss: Loss,
    scenario: Scenario,
    trace: Trace,
    sites: Sequence[RegionSite],
    spread_s: float,
    stats: RunStats,
    console: Console,
) -> Course:
    """Let the editors type, who use the nearest of the sites, and show what happens."""
    (event,) = scenario.events
    hosts = ",".join(site.address for site in sites)
    spec = parse_target(f"regions={NEAREST}://{hosts}?return_spread_s={spread_s:g}")
    check(scenario, [spec], 1)
    console.print(f"typing for {scenario.duration_s:g} s; {loss.value} at {event.at_s:g} s", style="dim")
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("connecting", total=scenario.duration_s, state="")

        def show(at_s: float) -> None:
            is_away, is_back = at_s >= event.at_s, at_s >= event.at_s + event.for_s
            phase = "back again" if is_back else "away" if is_away else "before the loss"
            counters = stats.total.counters
            state = f"{at_s:.0f} of {scenario.duration_s:g} s  seen {counters['seen']:,}  errors {counters['errors']:,}"
            progress.update(task, description=f"{loss.value}: {phase}", completed=at_s, state=state)

        return asyncio.run(follow(spec, scenario, trace, sites[0], stats, show))


def _scenario(options: _Options) -> Scenario:
    """Return the packaged scenario region-loss with the options' sizes and gaps between keys.

    Raises:
        ScenarioError: a value is not valid, or the times don't fit.

    """
    base = Scenario.load("region-loss")
    (event,) = base.events
    tree = base.model_dump() | {"seed": options.seed, "sessions": options.sessions}
    tree["duration_s"] = duration_s = options.seconds or base.duration_s
    at_s, for_s = options.lost_at or event.at_s, options.away or event.for_s
    if at_s + for_s >= duration_s:
        msg = f"away: the region must be back before the end at {duration_s:g} s, got {at_s:g} + {for_s:g} s"
        raise ScenarioError(msg)
    tree["events"] = ({"kind": event.kind, "region": base.regions[0].name, "at_s": at_s, "for_s": for_s},)
    tree["editor"]["lead_in"] = True  # else the run begins with every document unknown, which no day of work does
    for key in ("key_gap_median_s", "word_pause_median_s"):
        tree["typing"][key] *= options.pace
    return Scenario.of(tree)


if __name__ == "__main__":
    main()
