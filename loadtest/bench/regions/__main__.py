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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadtest.bench.regions.course import (
    Course,
    Loss,
    LossPlan,
    Place,
    RegionSite,
    follow,
    running_sites,
    target_of,
)
from loadtest.bench.regions.figures import figures, gates, invalid_because, judge
from loadtest.bench.regions.report import Finding, as_json, page, picture, report
from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.commands.outcome import NEW_FILE, Exit
from loadtest.driving.worker_pool import check
from loadtest.stats import RunStats
from loadtest.targets import TargetSpec, parse_target
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
    how, scenario = Loss(options.loss), _scenario(options)
    (event,) = scenario.events
    names = [region.name for region in scenario.regions]
    places = [Place(name, round_trip_ms) for name, round_trip_ms in zip(names, ROUND_TRIPS_MS, strict=True)]
    plan = LossPlan(how, event.at_s, event.at_s + event.for_s)
    console.print(f"making the keys of {scenario.sessions:,} editors", style="dim")
    trace = make_trace(scenario)
    stats = RunStats("regions", scenario.duration_s, scenario.slice_s)
    with ExitStack() as stack:
        console.print(f"starting {len(places)} servers", style="dim")
        sites = stack.enter_context(running_sites(places, options.config, options.overrides, how))
        spec = parse_target(target_of(sites, options.return_spread))
        check(scenario, [spec], 1)
        course = _follow(spec, scenario, trace, plan, sites[0], stats, console)
    found = figures(course, scenario.criteria, options.return_spread)
    return Finding(
        scenario=scenario,
        places=places,
        how=how,
        pace=options.pace,
        course=course,
        stats=stats,
        figures=found,
        verdicts=judge(gates(options.return_spread, scenario.criteria), found),
        invalid_because=invalid_because(found),
    )


def _follow(
    spec: TargetSpec,
    scenario: Scenario,
    trace: Trace,
    plan: LossPlan,
    site: RegionSite,
    stats: RunStats,
    console: Console,
) -> Course:
    console.print(f"typing for {scenario.duration_s:g} s; {plan.how.value} at {plan.lost_at_s:g} s", style="dim")
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("connecting", total=scenario.duration_s, state="")

        def show(at_s: float) -> None:
            phase = "before the loss" if at_s < plan.lost_at_s else "away" if at_s < plan.back_at_s else "back again"
            counters = stats.total.counters
            state = f"{at_s:.0f} of {scenario.duration_s:g} s  seen {counters['seen']:,}  errors {counters['errors']:,}"
            progress.update(task, description=f"{plan.how.value}: {phase}", completed=at_s, state=state)

        return asyncio.run(follow(spec, scenario, trace, plan, site, stats, show))


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
