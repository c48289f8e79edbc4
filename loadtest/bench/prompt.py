"""Replays typing over real files and measures the prefix-cache hits and build times of two prompt layouts.

The server's own prompt library builds one prompt at each key. The plain layout is built beside it: the text before the
cursor, the text after it and the middle marker, each side cut at a fixed number of characters from the cursor, with the
same tokenizer and the same token budget. A prefix cache of whole blocks, like the engine's, is simulated for both. The
last token of a prompt is always computed.
"""

import random
import string
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from tokenizers import Tokenizer

from completion_server.core.request import Mode
from completion_server.text.prompt.templates import FimOrder, Template
from loadtest.bench.runner.benchmark import COUNT, Options, benchmark, option, percentile
from loadtest.bench.runner.server import key_request, prompt_builder
from loadtest.traffic.documents import library_files

BLOCK_SIZES = (32, 16)
"""Tokens of a cache block: the server's own on a CPU, and vLLM's on a GPU. Figures without a size are for the first."""
_SUFFIX_SHARE = 0.25
"""Of the plain layout's budget; the same as the server's default."""
_SAMPLE_CHARS = 4000
"""Of each file, for the number of characters in a token."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MISTYPED_SHARE, _AWAY_SHARE = 0.02, 0.008
_NOTE = "  # see below"
_CHARACTERS_A_KEY = 4
"""Cut out for each key to be typed, so that the stretch does not run out before the keys do."""


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


class CursorText(NamedTuple):
    """A document around a cursor."""

    prefix: str
    suffix: str


def typed(text: str, num_keys: int, seed: int) -> list[CursorText]:
    """Return the document after each of at most `num_keys` keys of a user who types a stretch of `text` again.

    Enter brings the line's indentation along, an opening bracket brings its closing one, which is typed over later, now
    and then a word is mistyped and deleted again, and now and then the user goes to another line, types a comment there
    and comes back.
    """
    chance = random.Random(seed)
    at = chance.randrange(len(text) // 10, max(len(text) // 10 + 1, len(text) * 8 // 10))
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", begin + num_keys * _CHARACTERS_A_KEY)
    end = len(text) if end < 0 else end
    return list(islice(_keys(CursorText(text[:begin], text[end:]), text[begin:end], chance), num_keys))


def _keys(state: CursorText, text: str, chance: random.Random) -> Iterator[CursorText]:
    """Yield the document after each key of typing a text at the cursor."""
    at, brought = 0, list[str]()
    while at < len(text):
        draw = chance.random()
        if draw < _AWAY_SHARE:
            visited = list(_gone_away(state, chance))
            yield from visited
            state = visited[-1] if visited else state
        elif draw < _AWAY_SHARE + _MISTYPED_SHARE:
            wrong = "".join(chance.choices(string.ascii_lowercase, k=chance.randint(1, 3)))
            for length in (*range(1, len(wrong) + 1), *range(len(wrong) - 1, -1, -1)):
                yield CursorText(state.prefix + wrong[:length], state.suffix)
        key, right = _pressed(text[at:], state.suffix, brought)
        at += len(key)
        state = CursorText(state.prefix + key, right)
        yield state


def _pressed(text: str, right: str, brought: list[str]) -> tuple[str, str]:
    """Return what the next key of a text puts left of the cursor, and the text right of the cursor after it.

    `brought` are the closing brackets that the editor has put there.
    """
    key = text[0]
    if key == "\n":
        rest = text[1:]
        key += rest[: len(rest) - len(rest.lstrip(" \t"))]
    elif brought and key == brought[-1] and right.startswith(key):
        right = right.removeprefix(brought.pop())
    elif key in _CLOSING and (not right or right[0].isspace() or right[0] in ")]}"):
        brought.append(_CLOSING[key])
        right = _CLOSING[key] + right
    return key, right


def _gone_away(state: CursorText, chance: random.Random) -> Iterator[CursorText]:
    """Type a note at the end of another line and come back."""
    document, home = "".join(state), len(state.prefix)
    away = document.find("\n", chance.randrange(len(document)))
    if away < 0 or away == home:
        return
    for length in range(1, len(_NOTE) + 1):
        yield CursorText(document[:away] + _NOTE[:length], document[away:])
    document = document[:away] + _NOTE + document[away:]
    home += len(_NOTE) if away < home else 0
    yield CursorText(document[:home], document[home:])


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
class _LayoutStats:
    """Prefix-cache statistics of one layout's prompts, for a cache of each block size."""

    caches: list[BlockCache] = field(default_factory=lambda: list(map(BlockCache, BLOCK_SIZES)))
    num_tokens: int = 0
    prefilled: dict[int, list[int]] = field(default_factory=lambda: {size: [] for size in BLOCK_SIZES})

    def add(self, token_ids: Sequence[int]) -> None:
        self.num_tokens += len(token_ids)
        for cache in self.caches:
            self.prefilled[cache.block_size].append(cache.prefill(token_ids))

    def figures(self, block_size: int) -> dict[str, float]:
        prefilled = self.prefilled[block_size]
        return {
            "prompt_tokens_per_key": round(self.num_tokens / len(prefilled), 1),
            "prefilled_tokens_per_key": round(sum(prefilled) / len(prefilled), 1),
            "cached_share": round(1 - sum(prefilled) / self.num_tokens, 4),
        }


class _PlainLayout:
    """The prompt that most clients make, tokenised anew at each key."""

    def __init__(self, tokenizer: Tokenizer, template: Template, budget: int, sample: str) -> None:
        """Cut at distances that fill the budget for text like the sample."""
        characters_a_token = len(sample) / len(tokenizer.encode(sample).ids)
        self._tokenizer, self._template, self._budget = tokenizer, template, budget
        self._num_before = int(budget * (1 - _SUFFIX_SHARE) * characters_a_token)
        self._num_after = int(budget * _SUFFIX_SHARE * characters_a_token)

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


def measure_layouts(options: ReplayOptions) -> dict[str, Any]:
    """Replay typing and return the figures of both layouts. Raises ConfigError if there is no such model."""
    effective = {"engine": {"model": options.model}, "prompt": {}, "prompt_budget_tokens": options.tokens}
    builder, tokenizer = prompt_builder(effective), Tokenizer.from_file(str(Path(options.model) / "tokenizer.json"))
    ours, plain = _LayoutStats(), _LayoutStats()
    build_ms, whole_ms, num_tokenised, num_differing = list[float](), list[float](), 0, 0
    files = library_files(options.files, options.seed)
    sample = "".join(text[:_SAMPLE_CHARS] for text in files.values())
    layout = _PlainLayout(tokenizer, builder.template, options.tokens, sample)
    for number, (path, text) in enumerate(files.items()):
        for state in typed(text, options.keys, options.seed + number):
            request = key_request(len(build_ms), path, *state, "python", Mode.SINGLE_LINE)
            begun = time.perf_counter()
            prompt = builder.build(request)
            build_ms.append((time.perf_counter() - begun) * 1000)
            whole = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            begun = time.perf_counter()
            encoding = tokenizer.encode(whole, add_special_tokens=False)
            whole_ms.append((time.perf_counter() - begun) * 1000)
            num_tokenised += prompt.num_tokenised
            num_differing += encoding.ids != prompt.token_ids
            ours.add(prompt.token_ids)
            plain.add(layout.token_ids(state))
    by_size = {str(size): _compared(ours.figures(size), plain.figures(size)) for size in BLOCK_SIZES}
    return {
        "template": builder.template.name,
        "max_prompt_tokens": options.tokens,
        "block_size": BLOCK_SIZES[0],
        "num_keys": len(build_ms),
        "num_differing_prompts": num_differing,
        "tokenised_tokens_per_key": round(num_tokenised / len(build_ms), 1),
        **{f"tokenise_ms_p{each}": round(percentile(build_ms, each), 4) for each in (50, 95)},
        **{f"tokenise_ms_p{each}_whole": round(percentile(whole_ms, each), 4) for each in (50, 95)},
        **by_size[str(BLOCK_SIZES[0])],
        "by_block_size": by_size,
    }


def _compared(ours: Mapping[str, float], plain: Mapping[str, float]) -> dict[str, float]:
    ratio = ours["prefilled_tokens_per_key"] / plain["prefilled_tokens_per_key"]
    beside = {f"{name}_plain": value for name, value in plain.items()}
    return {**ours, **beside, "prefilled_tokens_per_key_ratio": round(ratio, 4)}


if __name__ == "__main__":
    main()
