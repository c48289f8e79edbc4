"""The command of the prompt replay: `python -m loadtest.bench.prompt`."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from completion_server.core.errors import ConfigError
from loadtest.bench.common.figures import report_console
from loadtest.bench.prompt.clients import AFTER_CHARS, ANCHORED, BEFORE_CHARS, measure_clients
from loadtest.bench.prompt.replay import measure
from loadtest.bench.prompt.settings import BLOCK_SIZES, ReplaySettings
from loadtest.processes.child import end_on_sigterm


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table(title=f"{figures['num_keys']} keys, {figures['max_prompt_tokens']} tokens, {figures['template']}")
    for heading in ("block", "layout", "prompt tokens", "prefilled a key", "p50", "p95", "from the cache"):
        table.add_column(heading, justify="left" if heading == "layout" else "right")
    for size, found in figures["by_block_size"].items():
        for name, suffix in (("this server's", ""), ("plain", "_plain")):
            table.add_row(
                size,
                name,
                f"{found['prompt_tokens_per_key' + suffix]:.0f}",
                f"{found['prefilled_tokens_per_key' + suffix]:.1f}",
                f"{found['prefilled_tokens_p50' + suffix]:.0f}",
                f"{found['prefilled_tokens_p95' + suffix]:.0f}",
                f"{found['cached_share' + suffix]:.1%}",
            )
    return table


def _clients_table(figures: Mapping[str, Any]) -> Table:
    before, after = figures["characters_before"], figures["characters_after"]
    requests = f"a request at every {figures['keys_per_request']} keys" if figures["keys_per_request"] > 1 else ""
    title = f"Clients that send {before} characters before the cursor and {after} after it"
    table = Table(title=f"{title}, {requests}" if requests else title)
    headings = (
        "block",
        "the window moves",
        "prompt tokens",
        "prefilled a key",
        "p50",
        "p95",
        "from the cache",
        "ratio",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "the window moves" else "right")
    for size in figures["by_client"][ANCHORED]:
        for name, sizes in figures["by_client"].items():
            found = sizes[size]
            table.add_row(
                size,
                "seldom (anchored)" if name == ANCHORED else name,
                f"{found['prompt_tokens_per_key']:.0f}",
                f"{found['prefilled_tokens_per_key']:.1f}",
                f"{found['prefilled_tokens_p50']:.0f}",
                f"{found['prefilled_tokens_p95']:.0f}",
                f"{found['cached_share']:.1%}",
                f"{found['prefilled_tokens_per_key_ratio_to_anchored']:.2f}",
            )
    return table


def _print_report(figures: Mapping[str, Any], console: Console) -> None:
    console.print(_table(figures))
    console.print(_clients_table(figures["clients"]))
    ratio = figures["prefilled_tokens_per_key_ratio"]
    console.print(f"Prefilled tokens at a key, of the plain layout's, blocks of {figures['block_size']}: {ratio:.1%}")
    console.print(
        f"Making the prompt: p50 {figures['tokenise_ms_p50']:.3f} ms, p95 {figures['tokenise_ms_p95']:.3f} ms, "
        f"{figures['tokenised_tokens_per_key']:.1f} tokens tokenised a key"
    )
    console.print(
        f"Tokenising all of it: p50 {figures['tokenise_ms_p50_whole']:.3f} ms, "
        f"p95 {figures['tokenise_ms_p95_whole']:.3f} ms; {figures['num_differing_prompts']} prompts differ"
    )


def _json_object(_context: click.Context, _parameter: click.Parameter, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        msg = f"not JSON: {error}; got {text!r}"
        raise click.BadParameter(msg) from error
    if not isinstance(found, dict):
        msg = f"must be a JSON object, got {text!r}"
        raise click.BadParameter(msg)
    return found


@click.command()
@click.option("--model", default="target_model/embedded", show_default=True, help="Folder with a tokenizer.json.")
@click.option("--files", default=12, show_default=True, help="Files of the standard library to type into.")
@click.option("--keys", default=150, show_default=True, help="Keys in each.")
@click.option("--seed", default=1, show_default=True)
@click.option("--tokens", default=1024, show_default=True, help="Budget of a prompt.")
@click.option(
    "--block-size",
    "sizes",
    multiple=True,
    type=int,
    default=BLOCK_SIZES,
    show_default=True,
    help="Tokens of a cache block, repeatable; the first is the engine's own on a CPU.",
)
@click.option("--before", default=BEFORE_CHARS, show_default=True, help="Characters that clients with a window send.")
@click.option("--keys-per-request", default=1, show_default=True, help="Keys between the requests of these clients.")
@click.option("--after", default=AFTER_CHARS, show_default=True, help="The same, after the cursor.")
@click.option("--cache-blocks", default=0, show_default=True, help="Blocks that the cache holds; 0 is no limit.")
@click.option("--settings", default="{}", callback=_json_object, help="The server's prompt section, as a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    *,
    model: str,
    files: int,
    keys: int,
    seed: int,
    tokens: int,
    sizes: tuple[int, ...],
    before: int,
    after: int,
    keys_per_request: int,
    cache_blocks: int,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Report the hit rate of a prefix cache while a user types, and the cost of building the prompts."""
    end_on_sigterm()
    try:
        replayed = ReplaySettings(
            model=model,
            num_files=files,
            num_keys=keys,
            seed=seed,
            max_prompt_tokens=tokens,
            block_sizes=sizes,
            cache_blocks=cache_blocks,
            prompt=settings,
        )
        figures = measure(replayed)
        figures["clients"] = measure_clients(
            replayed, num_before=before, num_after=after, keys_per_request=keys_per_request
        )
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(figures))
    else:
        _print_report(figures, report_console())


if __name__ == "__main__":
    main()
