"""Measures the loss of hit rate with a prefix cache for each user, compared with one cache that a team shares.

Each user types at other places of the same files, as a team does that works on one repository. The prompts are the
server's own. With `engine.cache_scope = "tenant"` all users share one cache; with "user" each user has a cache.

    python -m loadtest.bench.prompt.sharing
"""

import itertools
import json
from typing import Any

import click
from rich.table import Table

from completion_server.core.errors import ConfigError
from loadtest.bench.common.figures import report_console
from loadtest.bench.common.prompts import PromptMaker
from loadtest.bench.prompt.cache import BlockCache
from loadtest.bench.prompt.keystrokes import typed
from loadtest.processes.child import end_on_sigterm
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


@click.command()
@click.option("--model", default="target_model/embedded", show_default=True, help="Folder with a tokenizer.json.")
@click.option("--users", default=8, show_default=True, help="Users of the same files.")
@click.option("--files", default=6, show_default=True, help="Files of the standard library to type into.")
@click.option("--keys", default=60, show_default=True, help="Keys of each user in each file.")
@click.option("--seed", default=1, show_default=True)
@click.option("--tokens", default=1024, show_default=True, help="Budget of a prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(*, model: str, users: int, files: int, keys: int, seed: int, tokens: int, as_json: bool) -> None:
    """Report the loss of hit rate with a cache for each user, for users who type into the same files."""
    end_on_sigterm()
    try:
        figures = measure(model, num_users=users, num_files=files, num_keys=keys, seed=seed, tokens=tokens)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(figures))
        return
    title = f"{figures['keys']} keys of {users} users in the same {files} files: prompt tokens from the cache"
    table = Table(title=title)
    for heading in ("block", "a cache for each user", "one cache"):
        table.add_column(heading, justify="right")
    for size in (16, 128):
        table.add_row(str(size), *(f"{figures[f'cached_share_{scope}_{size}']:.1%}" for scope in ("user", "tenant")))
    report_console().print(table)


if __name__ == "__main__":
    main()
