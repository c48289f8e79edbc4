"""`loadtest tune-k`."""

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from completion_client.endpoint import DEFAULT_ADMIN_PORT, with_port
from loadtest.commands.outcome import Exit, credential_options, new_file, refusing
from loadtest.processes.child import end_on_sigterm
from loadtest.report.tables import print_table
from loadtest.targets import Credentials, TargetError, parse_target
from loadtest.targets.speculation import Operator
from loadtest.terminal import wide_console
from loadtest.traffic.scenario import Scenario
from loadtest.tuning.blocks import Variant
from loadtest.tuning.choice import MIN_ROUNDS
from loadtest.tuning.replay import Replay
from loadtest.tuning.report import as_json, render_tuning, tables
from loadtest.tuning.tuner import Tuned, Tuner, TuningError, TuningSettings


@click.command("tune-k")
@click.option("--server", required=True, metavar="HOST:PORT", help="Where the server takes completions.")
@credential_options()
@click.option(
    "--admin",
    default=f"127.0.0.1:{DEFAULT_ADMIN_PORT}",
    show_default=True,
    envvar="COMPLETION_SERVER_ADMIN_ADDRESS",
    metavar="HOST:PORT",
    help="Its admin listener.",
)
@credential_options("admin_credentials", "--admin-", "the admin listener's")
@click.option(
    "--trace",
    default="steady",
    show_default=True,
    metavar="SCENARIO",
    help="What is completed: a scenario by its name or file.",
)
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Set one key of the scenario.")
@click.option("--concurrency", metavar="N,N,...", help="Requests at once.  [default: 1,4,16,64, up to the slots]")
@click.option("--k", metavar="N,N,...", help="Values of K to try beside 0.  [default: all that the server allows]")
@click.option(
    "--rounds",
    type=click.IntRange(MIN_ROUNDS),
    default=6,
    show_default=True,
    help="How often each K meets each concurrency; more make intervals narrower.",
)
@click.option("--seconds", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Of a block, at the least.")
@click.option("--seed", help="Instead of the scenario's: other texts, another order.")
@new_file("--out", help="Write the schedule and all figures, as JSON.")
@new_file("--html", help="Write a page with the curves.")
@click.option("--json", "is_json", is_flag=True, help="Print the JSON instead of tables.")
def tune_k(
    *,
    server: str,
    credentials: Credentials,
    admin: str,
    admin_credentials: Credentials,
    trace: str,
    overrides: tuple[str, ...],
    concurrency: str | None,
    k: str | None,
    rounds: int,
    seconds: float,
    seed: str | None,
    out: Path | None,
    html: Path | None,
    is_json: bool,
) -> None:
    """Find how many tokens the draft should propose (K) for each batch size, on a running server.

    Closed-loop callers complete the text of a scenario's users. K changes live, in random order, block by block; the
    measure is tokens/s. A K above 0 is chosen only if it beats 0 beyond noise. Then the table, the best single K and 0
    compete on other texts. The server's earlier schedule is restored at the end, also after Ctrl-C.

    No other client should use the server meanwhile, and the server should not shed: start it with shed.when=never,
    scheduling.step_tolerance=0, and admission.user_requests_per_s, admission.user_tokens_per_s and
    admission.users_per_peer=0. An answer that comes from a completion cache makes the result invalid.

    Exit status: 0 success, 2 bad input or a server that can't be tuned, 3 an invalid result, 130 Ctrl-C.

    \b
    Examples:
      loadtest tune-k --server 127.0.0.1:50051 --out schedule.json --html tuning.html
      completion-server speculation set --schedule schedule.json
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with refusing(interrupted="Interrupted; the previous setting is active again."):
        scenario = Scenario.load(trace, overrides).scaled(seed=seed)
        concurrencies, ks = numbers("--concurrency", concurrency, least=1), numbers("--k", k, least=0)
        settings = TuningSettings(concurrencies, rounds, rounds, seconds, ks)
        admin = _address("--admin", with_port(admin, DEFAULT_ADMIN_PORT))
        address = _address("--server", server)
        end_on_sigterm()
        tuned = asyncio.run(_tune(address, credentials, admin, admin_credentials, scenario, settings))
    about = {"started_at": started_at, "scenario": scenario.name, "seed": scenario.seed, "rounds": rounds}
    _report(tuned, {"version": version("completion-server"), **about, "seconds": seconds}, server, out, html, is_json)


def _report(
    tuned: Tuned, about: Mapping[str, object], server: str, out: Path | None, html: Path | None, is_json: bool
) -> None:
    """Write the files that are asked for, print the result, and end with its status."""
    document = json.dumps(as_json(tuned, about), allow_nan=False)
    if out is not None:
        out.write_text(document + "\n", encoding="utf-8")
    if html is not None:
        facts = {"server": server, "model": tuned.server["model"], "draft": tuned.server["draft_model"], **about}
        html.write_text(render_tuning(tuned, {name: str(fact) for name, fact in facts.items()}), encoding="utf-8")
    if is_json:
        click.echo(document)
    else:
        print_tuning(tuned, wide_console())
    sys.exit(Exit.WELL if tuned.is_valid else Exit.INVALID)


def print_tuning(tuned: Tuned, console: Console) -> None:
    """Print the result, the verdict last."""
    for table in tables(tuned):
        print_table(table, console)
    for trouble in tuned.troubles:
        console.print(Text(trouble, style="bold red"))
    for line in tuned.verdict:
        console.print(Text(line))
    console.print(Text(f"Recommended: {json.dumps(tuned.recommended)}", style="bold"))


class Bar(Progress):
    """The progress bar of a tuning."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self.add_task("starting", total=None)

    def on_progress(self, stage: str, variant: Variant, concurrency: int, num_done: int, num_blocks: int) -> None:
        """Show the next block."""
        if not self.console.is_terminal and num_done == 0:
            self.console.print(f"{stage}: {num_blocks} blocks", markup=False, highlight=False)
        said = f"{stage}: {variant.name}, {concurrency} at once"
        self.update(self._task, description=said, completed=num_done, total=num_blocks)


def numbers(option: str, text: str | None, *, least: int) -> tuple[int, ...]:
    """Return whole numbers in ascending order; none without a text. Raises TuningError if one is none or too small."""
    found: set[int] = set()
    for each in text.split(",") if text is not None else ():
        if not each.strip().isdecimal() or int(each) < least:
            raise TuningError(
                f"{option}: numbers of at least {least} with commas between them; got {each.strip()!r} in {text!r}"
            )
        found.add(int(each))
    return tuple(sorted(found))


async def _tune(
    server: str,
    credentials: Credentials,
    admin: str,
    admin_credentials: Credentials,
    scenario: Scenario,
    settings: TuningSettings,
) -> Tuned:
    replay = Replay(server, scenario, credentials)
    try:
        with Bar(Console(stderr=True)) as bar:
            async with Operator(admin, admin_credentials) as operator:
                return await Tuner(operator, {"": replay}, scenario, bar.on_progress).tune(settings)
    finally:
        await replay.close()


def _address(option: str, text: str) -> str:
    """Return HOST:PORT. Raises TuningError if the text is not of this form."""
    try:
        (host,) = parse_target(f"grpc://{text.removeprefix('grpc://')}").hosts
    except (TargetError, ValueError) as error:
        raise TuningError(f"{option}: must be HOST:PORT, got {text!r}") from error
    return host
