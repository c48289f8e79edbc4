"""What a prefix cache serves while somebody types, and what making the prompts costs.

Replays typing over real files. At each key the server's own prompt room makes the prompt, in a process of its own, and
beside it the plain layout is made: the text before the cursor, the text behind it and the middle marker, each side cut
at a fixed number of characters from the cursor, with the same tokenizer and the same budget in tokens. A prefix cache
of whole blocks, as the engine has one, is simulated for both; the last token of a prompt is always computed.

    python -m loadtest.bench.prompt_replay --model MODEL
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from loadtest.bench.figures import percentile, report_console
from loadtest.bench.prompt_cache import BlockCache, Tally
from loadtest.bench.prompt_typing import State, typed
from loadtest.processes import Child, StartError, end_on_sigterm
from loadtest.traffic.documents import library_files

BLOCK_SIZES = (16, 32, 128)
_START_S = 120.0
_ANSWER_S = 30.0
_SUFFIX_SHARE = 0.25
"""Of the plain layout's budget; the same as the server's default."""


class PlainLayout:
    """The prompt that most clients make, tokenised anew at each key."""

    def __init__(self, tokenizer: Tokenizer, template: Mapping[str, Any], budget: int, sample: str) -> None:
        """Cut at distances that fill the budget for text like the sample."""
        characters_a_token = len(sample) / len(tokenizer.encode(sample).ids)
        self._tokenizer = tokenizer
        self._markers = [str(template[name]) for name in ("prefix", "suffix", "middle")]
        self._is_suffix_first = template["order"] == "suffix_first"
        self._num_before = int(budget * (1 - _SUFFIX_SHARE) * characters_a_token)
        self._num_after = int(budget * _SUFFIX_SHARE * characters_a_token)
        self._budget = budget

    def token_ids(self, state: State) -> list[int]:
        """Return the prompt; what is over the budget goes from the text farthest before the cursor."""
        before, after = state.prefix[-self._num_before :], state.suffix[: self._num_after]
        prefix, suffix, middle = self._markers
        while True:
            parts = (suffix, after, prefix, before) if self._is_suffix_first else (prefix, before, suffix, after)
            ids: list[int] = self._tokenizer.encode("".join((*parts, middle))).ids
            excess = len(ids) - self._budget
            if excess <= 0:
                return ids
            before = before[max(16, excess * 2) :]


@dataclass(slots=True)
class Making:
    """What making the server's prompts took."""

    build_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    num_tokenised: int = 0
    num_differing: int = 0

    def add(self, answer: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        """Count a prompt, and tokenise the whole of its text for comparison."""
        self.build_ms.append(answer["build_ms"])
        self.num_tokenised += answer["num_tokenised"]
        text = tokenizer.decode(answer["token_ids"], skip_special_tokens=False)
        begun = time.perf_counter()
        encoding = tokenizer.encode(text, add_special_tokens=False)
        self.whole_ms.append((time.perf_counter() - begun) * 1000)
        self.num_differing += encoding.ids != answer["token_ids"]

    def figures(self) -> dict[str, float]:
        """Return what it took at a key."""
        return {
            "num_keys": len(self.build_ms),
            "num_differing_prompts": self.num_differing,
            "tokenised_tokens_per_key": round(self.num_tokenised / len(self.build_ms), 1),
            "tokenise_ms_p50": round(percentile(self.build_ms, 50), 4),
            "tokenise_ms_p95": round(percentile(self.build_ms, 95), 4),
            "tokenise_ms_p50_whole": round(percentile(self.whole_ms, 50), 4),
            "tokenise_ms_p95_whole": round(percentile(self.whole_ms, 95), 4),
        }


def measure(
    model: str,
    *,
    num_files: int = 12,
    num_keys: int = 150,
    seed: int = 1,
    max_prompt_tokens: int = 1024,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    cache_blocks: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Replay typing and return the figures; those without a block size in their place are for the first one.

    `model` is a folder with a tokenizer.json; `cache_blocks` bounds the cache, 0 leaves it unbounded; `settings` is the
    server's prompt section.

    Raises:
        StartError: the prompt room did not start, for example because there is no such model.

    """
    section = {**(settings or {}), "max_prompt_tokens": max_prompt_tokens}
    command = [sys.executable, "-m", "completion_server.prompt", model, "--settings", json.dumps(section)]
    ours, plain = (Tally([BlockCache(size, cache_blocks) for size in block_sizes]) for _ in range(2))
    making = Making()
    files = library_files(num_files, seed)
    with Child("prompts", command, is_piped=True) as child:
        template = child.read_json(_START_S)["template"]
        tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
        layout = PlainLayout(tokenizer, template, max_prompt_tokens, "".join(text[:4000] for text in files.values()))
        for number, (path, text) in enumerate(files.items()):
            for state in typed(text, num_keys, seed + number):
                request = {"session": path, "document_uri": path, "language_id": "python", **asdict(state)}
                answer = child.ask(request, _ANSWER_S)
                making.add(answer, tokenizer)
                ours.add(answer["token_ids"])
                plain.add(layout.token_ids(state))
    by_size = {str(size): _compared(ours.figures(size), plain.figures(size)) for size in block_sizes}
    return {
        "template": template["name"],
        "max_prompt_tokens": max_prompt_tokens,
        "block_size": block_sizes[0],
        **making.figures(),
        **by_size[str(block_sizes[0])],
        "by_block_size": by_size,
    }


def _compared(ours: Mapping[str, float], plain: Mapping[str, float]) -> dict[str, float]:
    ratio = ours["prefilled_tokens_per_key"] / plain["prefilled_tokens_per_key"]
    return {
        **ours,
        **{f"{name}_plain": value for name, value in plain.items()},
        "prefilled_tokens_per_key_ratio": round(ratio, 4),
    }


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


def _print_report(figures: Mapping[str, Any], console: Console) -> None:
    console.print(_table(figures))
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


@click.command()
@click.option("--model", default="target_model/embedded", show_default=True, help="Folder with a tokenizer.json.")
@click.option("--files", default=12, show_default=True, help="Files of the standard library to type into.")
@click.option("--keys", default=150, show_default=True, help="Keys in each.")
@click.option("--seed", default=1, show_default=True)
@click.option("--tokens", default=1024, show_default=True, help="Budget of a prompt.")
@click.option("--block-size", "sizes", multiple=True, type=int, default=BLOCK_SIZES, show_default=True)
@click.option("--cache-blocks", default=0, show_default=True, help="Blocks that the cache holds; 0 is no limit.")
@click.option("--settings", default="{}", help="The server's prompt section, as a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    *,
    model: str,
    files: int,
    keys: int,
    seed: int,
    tokens: int,
    sizes: tuple[int, ...],
    cache_blocks: int,
    settings: str,
    as_json: bool,
) -> None:
    """Report what a prefix cache serves while somebody types, and what making the prompts costs."""
    end_on_sigterm()
    try:
        figures = measure(
            model,
            num_files=files,
            num_keys=keys,
            seed=seed,
            max_prompt_tokens=tokens,
            block_sizes=sizes,
            cache_blocks=cache_blocks,
            settings=json.loads(settings),
        )
    except StartError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(figures))
    else:
        _print_report(figures, report_console())


if __name__ == "__main__":
    main()
