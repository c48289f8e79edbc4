"""The command of the prompt replay: `python -m loadtest.bench.prompt`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench.prompt.clients import AFTER_CHARS, ANCHORED, BEFORE_CHARS, measure_clients
from loadtest.bench.prompt.replay import ReplayOptions, measure_layouts
from loadtest.bench.runner.benchmark import Result, benchmark, option
from loadtest.bench.runner.figures import text_table

_HEADINGS = ("prompt tokens", "prefilled a key", "p50", "p95", "from the cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ReplayOptions):
    before: int = option(BEFORE_CHARS, "Characters that clients with a window send.", int)
    after: int = option(AFTER_CHARS, "The same, after the cursor.", int)
    keys_per_request: int = option(1, "Keys between the requests of these clients.", int)


@benchmark(_Options)
def main(options: _Options, _console: Console) -> Result:
    """Report the hit rate of a prefix cache while a user types, and the cost of building the prompts."""
    figures = measure_layouts(options)
    figures["clients"] = measure_clients(options, options.before, options.after, options.keys_per_request)
    return Result(figures, [_table(figures), _clients_table(figures["clients"]), *_lines(figures)])


def _table(figures: Mapping[str, Any]) -> Table:
    rows = tuple(
        (size, name, *_cells(found, suffix))
        for size, found in figures["by_block_size"].items()
        for name, suffix in (("this server's", ""), ("plain", "_plain"))
    )
    title = f"{figures['num_keys']} keys, {figures['max_prompt_tokens']} tokens, {figures['template']}"
    return text_table(title, ("block", "layout", *_HEADINGS), rows, num_words=2)


def _clients_table(figures: Mapping[str, Any]) -> Table:
    before, after = figures["characters_before"], figures["characters_after"]
    requests = f", a request at every {figures['keys_per_request']} keys" if figures["keys_per_request"] > 1 else ""
    rows = tuple(
        (
            size,
            "seldom (anchored)" if name == ANCHORED else name,
            *_cells(sizes[size]),
            f"{sizes[size]['prefilled_tokens_per_key_ratio_to_anchored']:.2f}",
        )
        for size in figures["by_client"][ANCHORED]
        for name, sizes in figures["by_client"].items()
    )
    headings = ("block", "the window moves", *_HEADINGS, "ratio")
    title = f"Clients that send {before} characters before the cursor and {after} after it{requests}"
    return text_table(title, headings, rows, num_words=2)


def _cells(found: Mapping[str, float], suffix: str = "") -> tuple[str, ...]:
    return (
        f"{found['prompt_tokens_per_key' + suffix]:.0f}",
        f"{found['prefilled_tokens_per_key' + suffix]:.1f}",
        f"{found['prefilled_tokens_p50' + suffix]:.0f}",
        f"{found['prefilled_tokens_p95' + suffix]:.0f}",
        f"{found['cached_share' + suffix]:.1%}",
    )


def _lines(figures: Mapping[str, Any]) -> list[str]:
    ratio = figures["prefilled_tokens_per_key_ratio"]
    return [
        f"Prefilled tokens at a key, of the plain layout's, blocks of {figures['block_size']}: {ratio:.1%}",
        f"Making the prompt: p50 {figures['tokenise_ms_p50']:.3f} ms, p95 {figures['tokenise_ms_p95']:.3f} ms, "
        f"{figures['tokenised_tokens_per_key']:.1f} tokens tokenised a key",
        f"Tokenising all of it: p50 {figures['tokenise_ms_p50_whole']:.3f} ms, "
        f"p95 {figures['tokenise_ms_p95_whole']:.3f} ms; {figures['num_differing_prompts']} prompts differ",
    ]


if __name__ == "__main__":
    main()
