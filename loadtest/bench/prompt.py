"""Replays typing over real files and measures the prefix-cache hits and build times of two prompt layouts.

The server's own prompt library builds one prompt at each key. The plain layout is built beside it: the text before the
cursor, the text after it and the middle marker, each side cut at a fixed number of characters from the cursor, with the
same tokenizer and the same token budget. A prefix cache of whole blocks, like the engine's, is simulated for both. The
last token of a prompt is always computed.
"""

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer

from completion_server.prompt.builder import Prompt
from completion_server.prompt.templates import FimOrder, Template
from loadtest.bench.keystrokes import typed
from loadtest.bench.runner.benchmark import COUNT, Options, benchmark, option
from loadtest.bench.runner.figures import percentile
from loadtest.bench.runner.prompts import CursorText, PromptMaker
from loadtest.traffic.documents import library_files

BLOCK_SIZES = (32, 16)
"""Tokens of a cache block: the server's own on a CPU, and vLLM's on a GPU. Figures without a size are for the first."""
_SUFFIX_SHARE = 0.25
"""Of the plain layout's budget; the same as the server's default."""
_SAMPLE_CHARS = 4000
"""Of each file, for the number of characters in a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Options):
    """The options of a replay."""

    model: str = option("target_model/embedded", "Folder with a tokenizer.json.")
    files: int = option(12, "Files of the standard library to type into.", COUNT, quick=2)
    keys: int = option(150, "Keys in each.", COUNT, quick=50)
    seed: int = option(1, "", int)
    tokens: int = option(1024, "Budget of a prompt.", COUNT)


@benchmark(ReplayOptions)
def main(options: ReplayOptions, _console: Console) -> Mapping[str, Any]:
    """Report the hit rate of a prefix cache while a user types, and the cost of building the prompts."""
    return measure_layouts(options)


class BlockCache:
    """A prefix cache of blocks of tokens, each under the block before it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._ids: dict[tuple[int, bytes], int] = {}

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt must be computed, and keep its whole blocks."""
        num_cached, parent, is_hit = 0, 0, True
        for begin in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            key = (parent, array("I", token_ids[begin : begin + self.block_size]).tobytes())
            is_hit = is_hit and key in self._ids and begin + self.block_size < len(token_ids)
            num_cached += self.block_size if is_hit else 0
            parent = self._ids.setdefault(key, len(self._ids) + 1)
        return len(token_ids) - num_cached


@dataclass(slots=True)
class LayoutStats:
    """Prefix-cache statistics of one layout's prompts, for a cache of each block size."""

    caches: list[BlockCache] = field(default_factory=lambda: list(map(BlockCache, BLOCK_SIZES)))
    num_tokens: int = 0
    prefilled: dict[int, list[int]] = field(default_factory=dict)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count a prompt."""
        self.num_tokens += len(token_ids)
        for cache in self.caches:
            self.prefilled.setdefault(cache.block_size, []).append(cache.prefill(token_ids))

    def figures(self, block_size: int) -> dict[str, float]:
        """Return the figures of one cache."""
        prefilled = self.prefilled[block_size]
        return {
            "prompt_tokens_per_key": round(self.num_tokens / len(prefilled), 1),
            "prefilled_tokens_per_key": round(sum(prefilled) / len(prefilled), 1),
            "prefilled_tokens_p50": percentile(prefilled, 50),
            "prefilled_tokens_p95": percentile(prefilled, 95),
            "cached_share": round(1 - sum(prefilled) / self.num_tokens, 4),
        }


class PlainLayout:
    """The prompt that most clients make, tokenised anew at each key."""

    def __init__(self, tokenizer: Tokenizer, template: Template, budget: int, sample: str) -> None:
        """Cut at distances that fill the budget for text like the sample."""
        characters_a_token = len(sample) / len(tokenizer.encode(sample).ids)
        self._tokenizer = tokenizer
        self._template = template
        self._num_before = int(budget * (1 - _SUFFIX_SHARE) * characters_a_token)
        self._num_after = int(budget * _SUFFIX_SHARE * characters_a_token)
        self._budget = budget

    def token_ids(self, state: CursorText) -> list[int]:
        """Return the prompt; excess tokens are cut from the text farthest before the cursor."""
        before, template = state.prefix[-self._num_before :], self._template
        after = template.suffix + state.suffix[: self._num_after]
        while True:
            parts = (template.prefix + before, after)
            pieces = parts[::-1] if template.order is FimOrder.SUFFIX_FIRST else parts
            ids: list[int] = self._tokenizer.encode("".join((*pieces, template.middle))).ids
            excess = len(ids) - self._budget
            if excess <= 0:
                return ids
            before = before[max(16, excess * 2) :]


@dataclass(slots=True)
class BuildTimes:
    """How long the server's prompts took to build, and how many of their tokens were computed."""

    tokenizer: Tokenizer
    build_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    num_tokenised: int = 0
    num_differing: int = 0

    def add(self, prompt: Prompt, build_ms: float) -> None:
        """Count a prompt, and tokenise the whole of its text for comparison."""
        self.build_ms.append(build_ms)
        self.num_tokenised += prompt.num_tokenised
        text = self.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
        begun = time.perf_counter()
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        self.whole_ms.append((time.perf_counter() - begun) * 1000)
        self.num_differing += encoding.ids != prompt.token_ids

    def figures(self) -> dict[str, float]:
        """Return the times and token counts per key."""
        return {
            "num_keys": len(self.build_ms),
            "num_differing_prompts": self.num_differing,
            "tokenised_tokens_per_key": round(self.num_tokenised / len(self.build_ms), 1),
            **{f"tokenise_ms_p{each}": round(percentile(self.build_ms, each), 4) for each in (50, 95)},
            **{f"tokenise_ms_p{each}_whole": round(percentile(self.whole_ms, each), 4) for each in (50, 95)},
        }


def measure_layouts(options: ReplayOptions) -> dict[str, Any]:
    """Replay typing and return the figures of both layouts. Raises ConfigError if there is no such model."""
    maker = PromptMaker(options.model, {"max_prompt_tokens": options.tokens})
    template = maker.builder.template
    tokenizer = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json"))
    ours, plain, times = LayoutStats(), LayoutStats(), BuildTimes(tokenizer)
    files = library_files(options.files, options.seed)
    sample = "".join(text[:_SAMPLE_CHARS] for text in files.values())
    layout = PlainLayout(tokenizer, template, options.tokens, sample)
    for number, (path, text) in enumerate(files.items()):
        for state in typed(text, options.keys, options.seed + number):
            prompt, build_ms = maker.make(path, state.prefix, state.suffix, language_id="python")
            times.add(prompt, build_ms)
            ours.add(prompt.token_ids)
            plain.add(layout.token_ids(state))
    by_size = {str(size): _compared(ours.figures(size), plain.figures(size)) for size in BLOCK_SIZES}
    return {
        "template": template.name,
        "max_prompt_tokens": options.tokens,
        "block_size": BLOCK_SIZES[0],
        **times.figures(),
        **by_size[str(BLOCK_SIZES[0])],
        "by_block_size": by_size,
    }


def _compared(ours: Mapping[str, float], plain: Mapping[str, float]) -> dict[str, float]:
    ratio = ours["prefilled_tokens_per_key"] / plain["prefilled_tokens_per_key"]
    beside = {f"{name}_plain": value for name, value in plain.items()}
    return {**ours, **beside, "prefilled_tokens_per_key_ratio": round(ratio, 4)}


if __name__ == "__main__":
    main()
