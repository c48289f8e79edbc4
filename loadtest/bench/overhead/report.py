"""The figures and tables of the overhead benchmark, from paired blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench.common.figures import Block, Summary, median_of_pairs, rounded
from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.bench.peers.vllm_serve import TextPrompts, VllmServe

Results = dict[int, dict[str, list[Block]]]
"""Blocks by concurrency and contestant; the same place in two lists is the same round."""

_SERVER = "server"
_PEERS = {VllmServe.name: "vllm_serve", TextPrompts.name: "vllm_serve_text"}


def figures(results: Results) -> dict[str, Any]:
    """Return the headline figures, each the worst over the concurrencies, and the figures by concurrency."""
    by_concurrency = {concurrency: _figures_at(blocks) for concurrency, blocks in results.items()}
    names = next(iter(by_concurrency.values()))
    worst: dict[str, Any] = {}
    for name in names:
        values = [value for at in by_concurrency.values() if (value := at[name]) is not None]
        pick = min if name.startswith("tokens_per_s") else max
        worst[name] = pick(values) if values else None
    return worst | {
        "by_concurrency": {
            str(concurrency): by_concurrency[concurrency] | {"contestants": _summaries(blocks)}
            for concurrency, blocks in results.items()
        }
    }


def print_tables(results: Results, console: Console) -> None:
    """Print the figures of all contestants, and the comparison."""
    for concurrency, blocks in results.items():
        console.print(_contestants_table(concurrency, blocks))
    console.print(_figures_table(results))


def _figures_at(blocks: Mapping[str, Sequence[Block]]) -> dict[str, float | None]:
    added = _paired_ttft(blocks, BareEngine.name, ratio=False)
    found = {"ttft_added_ms_p50": added, "tokens_per_s_ratio_to_engine": _paired_rate(blocks, BareEngine.name)}
    for peer, key in _PEERS.items():
        if peer in blocks:
            found[f"ttft_ratio_to_{key}"] = _paired_ttft(blocks, peer, ratio=True)
            found[f"tokens_per_s_ratio_to_{key}"] = _paired_rate(blocks, peer)
    return {name: rounded(value) for name, value in found.items()}


def _paired_ttft(blocks: Mapping[str, Sequence[Block]], other: str, *, ratio: bool) -> float:
    ours, theirs = ([s.ttft_ms for block in blocks[name] for s in block.samples] for name in (_SERVER, other))
    return median_of_pairs(ours, theirs, ratio=ratio)


def _paired_rate(blocks: Mapping[str, Sequence[Block]], other: str) -> float:
    ours, theirs = ([block.tokens_per_s for block in blocks[name]] for name in (_SERVER, other))
    return median_of_pairs(ours, theirs, ratio=True)


def _summaries(blocks: Mapping[str, Sequence[Block]]) -> dict[str, dict[str, float | None]]:
    return {
        name: {key: rounded(value) for key, value in asdict(Summary.of(own)).items()} for name, own in blocks.items()
    }


def _contestants_table(concurrency: int, blocks: Mapping[str, Sequence[Block]]) -> Table:
    num_requests = sum(len(block.samples) for block in blocks[_SERVER])
    table = Table(title=f"{num_requests} requests each, {concurrency} at a time", title_justify="left")
    table.add_column("")
    for column in ("TTFT p50 ms", "p95 ms", "tokens/s each", "tokens/s together", "cached"):
        table.add_column(column, justify="right")
    for name, own in blocks.items():
        summary = Summary.of(own)
        table.add_row(
            name,
            f"{summary.ttft_ms_p50:.1f}",
            f"{summary.ttft_ms_p95:.1f}",
            f"{summary.stream_tokens_per_s_p50:.0f}",
            f"{summary.tokens_per_s_p50:.0f}",
            "" if name in _PEERS else f"{summary.cached_share:.1%}",
        )
    return table


def _figures_table(results: Results) -> Table:
    table = Table(title="The server against the others, medians of pairs", title_justify="left")
    table.add_column("")
    for concurrency in results:
        table.add_column(f"{concurrency} at a time", justify="right")
    table.add_column("aim", justify="right")
    columns = [_figures_at(blocks) for blocks in results.values()]
    for name in columns[0]:
        cells = ["" if column[name] is None else f"{column[name]:.3f}" for column in columns]
        table.add_row(name, *cells, _aim(name))
    return table


def _aim(name: str) -> str:
    if name == "ttft_added_ms_p50":
        return "at most 1.5"
    if name == "tokens_per_s_ratio_to_engine":
        return "at least 0.95"
    return "below 1" if name.startswith("ttft") else "above 1"
