"""Replays typing over real files and measures the prefix-cache hits and build times of two prompt layouts.

The server's own prompt library builds one prompt at each key. The plain layout is built beside it: the text before the
cursor, the text after it and the middle marker, each side cut at a fixed number of characters from the cursor, with the
same tokenizer and the same token budget. A prefix cache of whole blocks, like the engine's, is simulated for both. The
last token of a prompt is always computed.
"""

import json
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer

from completion_server.prompt.builder import Prompt
from completion_server.prompt.templates import FimOrder, Template
from loadtest.bench.prompt.keystrokes import typed
from loadtest.bench.runner.benchmark import Options, option
from loadtest.bench.runner.figures import percentile
from loadtest.bench.runner.prompts import CursorText, PromptMaker
from loadtest.traffic.documents import library_files

BLOCK_SIZES = (32, 16)
"""Tokens of a cache block: the server's own on a CPU, and vLLM's on a GPU."""
_SUFFIX_SHARE = 0.25
"""Of the plain layout's budget; the same as the server's default."""
_SAMPLE_CHARS = 4000
"""Of each file, for the number of characters in a token."""


def _json_object(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        msg = f"not JSON: {error}; got {text!r}"
        raise click.BadParameter(msg) from error
    if not isinstance(found, dict):
        msg = f"must be a JSON object, got {text!r}"
        raise click.BadParameter(msg)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Options):
    """The options that all replays share."""

    model: str = option("target_model/embedded", "Folder with a tokenizer.json.")
    files: int = option(12, "Files of the standard library to type into.", int)
    keys: int = option(150, "Keys in each.", int)
    seed: int = option(1, "", int)
    tokens: int = option(1024, "Budget of a prompt.", int)
    sizes: tuple[int, ...] = option(
        BLOCK_SIZES,
        "Tokens of a cache block, repeatable; the first is the engine's own on a CPU.",
        int,
        "--block-size",
    )
    cache_blocks: int = option(0, "Blocks that the cache holds; 0 is no limit.", int)
    settings: Mapping[str, Any] | None = option(
        None, "The server's prompt section, as a JSON object.  [default: {}]", callback=_json_object
    )

    def prompt_maker(self) -> PromptMaker:
        """Return a maker of prompts that knows no document yet.

        Raises:
            ConfigError: there is no such model, or the prompt section can't be used.

        """
        return PromptMaker(self.model, {**(self.settings or {}), "max_prompt_tokens": self.tokens})

    def layout_stats(self) -> "LayoutStats":
        """Return statistics with an empty cache of each block size."""
        return LayoutStats([BlockCache(size, self.cache_blocks) for size in self.sizes])


class BlockCache:
    """A prefix cache of blocks of tokens, each under the block before it."""

    def __init__(self, block_size: int, capacity: int = 0) -> None:
        """Keep `capacity` blocks, the least recently used forgotten first; 0 keeps all."""
        self.block_size = block_size
        self._capacity = capacity
        self._ids: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._num_made = 0

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt must be computed, and keep its whole blocks."""
        num_cached, parent, is_hit = 0, 0, True
        for begin in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            key = (parent, array("I", token_ids[begin : begin + self.block_size]).tobytes())
            found = self._ids.get(key)
            is_hit = is_hit and found is not None and begin + self.block_size < len(token_ids)
            num_cached += self.block_size if is_hit else 0
            parent = self._keep(key, found)
        return len(token_ids) - num_cached

    def _keep(self, key: tuple[int, bytes], found: int | None) -> int:
        if found is None:
            self._num_made += 1
            found = self._ids[key] = self._num_made
            if self._capacity and len(self._ids) > self._capacity:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(key)
        return found


@dataclass(slots=True)
class LayoutStats:
    """Prefix-cache statistics of one layout's prompts, for a cache of each block size."""

    caches: list[BlockCache]
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
        self._markers = (template.prefix, template.suffix, template.middle)
        self._is_suffix_first = template.order is FimOrder.SUFFIX_FIRST
        self._num_before = int(budget * (1 - _SUFFIX_SHARE) * characters_a_token)
        self._num_after = int(budget * _SUFFIX_SHARE * characters_a_token)
        self._budget = budget

    def token_ids(self, state: CursorText) -> list[int]:
        """Return the prompt; excess tokens are cut from the text farthest before the cursor."""
        before, after = state.prefix[-self._num_before :], state.suffix[: self._num_after]
        prefix, suffix, middle = self._markers
        while True:
            pieces = (suffix, after, prefix, before) if self._is_suffix_first else (prefix, before, suffix, after)
            ids: list[int] = self._tokenizer.encode("".join((*pieces, middle))).ids
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
            "tokenise_ms_p50": round(percentile(self.build_ms, 50), 4),
            "tokenise_ms_p95": round(percentile(self.build_ms, 95), 4),
            "tokenise_ms_p50_whole": round(percentile(self.whole_ms, 50), 4),
            "tokenise_ms_p95_whole": round(percentile(self.whole_ms, 95), 4),
        }


def measure_layouts(options: ReplayOptions) -> dict[str, Any]:
    """Replay typing and return the figures. Figures that name no block size are for the first of `sizes`.

    Raises:
        ConfigError: there is no such model, or the settings can't be used.

    """
    maker = options.prompt_maker()
    template = maker.builder.template
    tokenizer = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json"))
    ours, plain, times = options.layout_stats(), options.layout_stats(), BuildTimes(tokenizer)
    files = library_files(options.files, options.seed)
    sample = "".join(text[:_SAMPLE_CHARS] for text in files.values())
    layout = PlainLayout(tokenizer, template, options.tokens, sample)
    for number, (path, text) in enumerate(files.items()):
        for state in typed(text, options.keys, options.seed + number):
            prompt, build_ms = maker.make(path, state.prefix, state.suffix, language_id="python")
            times.add(prompt, build_ms)
            ours.add(prompt.token_ids)
            plain.add(layout.token_ids(state))
    by_size = {str(size): _compared(ours.figures(size), plain.figures(size)) for size in options.sizes}
    first_size = options.sizes[0]
    return {
        "template": template.name,
        "max_prompt_tokens": options.tokens,
        "block_size": first_size,
        **times.figures(),
        **by_size[str(first_size)],
        "by_block_size": by_size,
    }


def _compared(ours: Mapping[str, float], plain: Mapping[str, float]) -> dict[str, float]:
    ratio = ours["prefilled_tokens_per_key"] / plain["prefilled_tokens_per_key"]
    return {
        **ours,
        **{f"{name}_plain": value for name, value in plain.items()},
        "prefilled_tokens_per_key_ratio": round(ratio, 4),
    }
