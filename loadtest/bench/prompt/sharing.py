"""Measures the loss of hit rate with a prefix cache for each user, compared with one cache that a team shares.

Each user types at other places of the same files, as a team does that works on one repository. The prompts are the
server's own. With `engine.cache_scope = "tenant"` all users share one cache; with "user" each user has a cache. The
typing of all users is interleaved key by key. Caches forget nothing.

    python -m loadtest.bench.prompt.sharing
"""

from collections import Counter
from dataclasses import dataclass

from rich.console import Console

from loadtest.bench.prompt.keystrokes import typed
from loadtest.bench.prompt.replay import BlockCache
from loadtest.bench.runner.benchmark import Options, Result, benchmark, option
from loadtest.bench.runner.figures import text_table
from loadtest.bench.runner.prompts import PromptMaker
from loadtest.traffic.documents import library_files

_BLOCK_SIZES = (16, 128)
_SCOPES = ("user", "tenant")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Options):
    model: str = option("target_model/embedded", "Folder with a tokenizer.json.")
    users: int = option(8, "Users of the same files.", int)
    files: int = option(6, "Files of the standard library to type into.", int)
    keys: int = option(60, "Keys of each user in each file.", int)
    seed: int = option(1, "", int)
    tokens: int = option(1024, "Budget of a prompt.", int)


@benchmark(_Options)
def main(options: _Options, _console: Console) -> Result:
    """Report the loss of hit rate with a cache for each user, for users who type into the same files."""
    maker = PromptMaker(options.model, {"max_prompt_tokens": options.tokens})
    shared = {size: BlockCache(size) for size in _BLOCK_SIZES}
    apart = {(size, user): BlockCache(size) for size in _BLOCK_SIZES for user in range(options.users)}
    num_prefilled: Counter[tuple[str, int]] = Counter()
    num_tokens = 0
    for path, text in library_files(options.files, options.seed).items():
        users = [typed(text, options.keys, options.seed + user) for user in range(options.users)]
        for keys in zip(*users, strict=True):
            for user, key in enumerate(keys):
                made, _ = maker.make(path, key.prefix, key.suffix, session=f"{user} {path}", language_id="python")
                num_tokens += len(made.token_ids)
                for size in _BLOCK_SIZES:
                    num_prefilled["user", size] += apart[size, user].prefill(made.token_ids)
                    num_prefilled["tenant", size] += shared[size].prefill(made.token_ids)
    shares = {
        (scope, size): round(1 - num_prefilled[scope, size] / num_tokens, 4)
        for scope in _SCOPES
        for size in _BLOCK_SIZES
    }
    num_keys = options.users * options.files * options.keys
    figures: dict[str, float] = {"users": options.users, "keys": num_keys}
    figures |= {f"cached_share_{scope}_{size}": share for (scope, size), share in shares.items()}
    title = f"{num_keys} keys of {options.users} users in the same {options.files} files: tokens from the cache"
    rows = tuple((str(size), *(f"{shares[scope, size]:.1%}" for scope in _SCOPES)) for size in _BLOCK_SIZES)
    return Result(figures, [text_table(title, ("block", "a cache for each user", "one cache"), rows)])


if __name__ == "__main__":
    main()
