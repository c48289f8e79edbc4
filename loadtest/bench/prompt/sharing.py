"""Measures the loss of hit rate with a prefix cache for each user, compared with one cache that a team shares.

Each user types at other places of the same files, as a team does that works on one repository. The prompts are the
server's own. With `engine.cache_scope = "tenant"` all users share one cache; with "user" each user has a cache.

    python -m loadtest.bench.prompt.sharing
"""

import itertools
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from loadtest.bench.prompt.keystrokes import typed
from loadtest.bench.prompt.replay import BlockCache
from loadtest.bench.runner.benchmark import Options, Result, benchmark, option
from loadtest.bench.runner.figures import text_table
from loadtest.bench.runner.prompts import PromptMaker
from loadtest.traffic.documents import library_files


def measure(model: str, *, num_users: int, num_files: int, num_keys: int, seed: int, tokens: int) -> dict[str, Any]:
    """Replay the typing and return the share of prompt tokens that the cache had, for either scope and block size.

    The typing of all users is interleaved key by key. Caches forget nothing.

    Raises:
        ConfigError: the model has no usable tokenizer.

    """
    maker = PromptMaker(model, {"max_prompt_tokens": tokens})
    shared = {size: BlockCache(size) for size in (16, 128)}
    apart = {(size, user): BlockCache(size) for size in shared for user in range(num_users)}
    num_prefilled: dict[tuple[str, int], int] = dict.fromkeys(itertools.product(("user", "tenant"), shared), 0)
    num_tokens = 0
    for path, text in library_files(num_files, seed).items():
        users = [typed(text, num_keys, seed + user) for user in range(num_users)]
        for keys in zip(*users, strict=True):
            for user, key in enumerate(keys):
                session = f"{user} {path}"
                prompt, _ = maker.make(path, key.prefix, key.suffix, session=session, language_id="python")
                num_tokens += len(prompt.token_ids)
                for size in shared:
                    num_prefilled["user", size] += apart[size, user].prefill(prompt.token_ids)
                    num_prefilled["tenant", size] += shared[size].prefill(prompt.token_ids)
    shares = {key: round(1 - num / num_tokens, 4) for key, num in num_prefilled.items()}
    return {
        "users": num_users,
        "keys": num_users * num_files * num_keys,
        **{f"cached_share_{scope}_{size}": share for (scope, size), share in shares.items()},
    }


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
    figures = measure(
        options.model,
        num_users=options.users,
        num_files=options.files,
        num_keys=options.keys,
        seed=options.seed,
        tokens=options.tokens,
    )
    title = f"{figures['keys']} keys of {options.users} users in the same {options.files} files: tokens from the cache"
    rows = tuple(
        (str(size), *(f"{figures[f'cached_share_{scope}_{size}']:.1%}" for scope in ("user", "tenant")))
        for size in (16, 128)
    )
    return Result(figures, [text_table(title, ("block", "a cache for each user", "one cache"), rows)])


if __name__ == "__main__":
    main()
