"""The attacks by name, and the process that runs one: `python -m loadtest.bench.attacks.attacker`.

It attacks from addresses of its own (127.0.0.2, 127.0.1.1 and others), so that limits for each peer can tell it from
the honest users. A line on standard input ends it; it then prints its counts.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from loadtest.bench.attacks import load, malformed, tokens, unfinished
from loadtest.bench.attacks.attack import Attack, Counts, Target, keep_on

_NICENESS = 10
"""Niceness of the process: a real attacker has another machine and takes no CPU from the server."""
_LONG_CONTEXT = ("engine.max_model_len=4096", "prompt.max_prompt_tokens=3000")

ATTACKS: Mapping[str, Attack] = {
    "snippet_bomb": Attack("2 messages/s of empty snippets, 16 MiB that gzip to 16 KiB", unfinished.snippet_bomb),
    "refused_prefixes": Attack(
        "4 callers in a loop, each with a prefix of 15 MiB (or the server's limit)", unfinished.refused_prefixes
    ),
    "half_messages": Attack(
        "24 streams on one connection, each with a message of 16 MiB (or the server's limit) less a byte",
        unfinished.half_messages,
    ),
    "held_messages": Attack("16 messages of a MiB less a byte from each of 64 addresses", unfinished.held_messages),
    "idle_sessions": Attack(
        "20,000 Session streams without a request, on one connection (or as many as the server allows on 16)",
        load.idle_sessions,
    ),
    "resets": Attack("100,000 calls opened and reset, 20,000 of them at once every 2 s", load.resets, seconds=20.0),
    "flood": Attack("one Session stream with valid requests of 6 KB, as fast as the server reads", load.flood),
    "big_prompts": Attack(
        "one user asks 20 times a second, EXPLICIT, each time with a new document that fills the prompt",
        load.big_prompts,
        _LONG_CONTEXT,
    ),
    # A limit for each user lets all of them pass.
    "many_names": Attack(
        "the same under 200 user names, from one address", partial(load.big_prompts, users=200), _LONG_CONTEXT
    ),
    "mutations": Attack("mutated messages, HTTP/2 frames and HTTP bodies in turn", malformed.mutations),
    "slow_connections": Attack(
        "1,000 connections to gRPC and 1,000 to HTTP with the beginning of a request or a TLS handshake",
        unfinished.slow_connections,
    ),
    "bad_fields": Attack("metadata bombs, 100,000 stop strings, deep JSON, NaN, infinity", malformed.bad_fields),
    "forged_tokens": Attack(
        "1,000 calls/s with forged, expired and misdirected tokens", tokens.forged_tokens, prepare=tokens.prepare
    ),
    "pings": Attack("20,000 PING frames on a connection, then others that are answered or ignored", malformed.pings),
    "cancels": Attack("requests, every second one cancelled at its first text", load.cancels, load.UNLIMITED),
    "overload": Attack(
        "three times the engine's capacity for five minutes, from 256 users at 64 addresses",
        load.overload,
        seconds=300.0,
    ),
    "spike": Attack("ten times the engine's capacity for 10 s", partial(load.overload, times=10.0)),
}


@click.command()
@click.argument("name", type=click.Choice(list(ATTACKS)))
@click.argument("address")
@click.argument("http_address")
@click.argument("folder", type=click.Path(path_type=Path))
def main(name: str, address: str, http_address: str, folder: Path) -> None:
    """Run the attack NAME on the server at ADDRESS until a line comes on standard input."""
    os.nice(_NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    click.echo(json.dumps(asyncio.run(_attack(ATTACKS[name], Target(address, http_address, folder)))))


async def _attack(attack: Attack, target: Target) -> Counts:
    counts: Counts = Counter()
    running = asyncio.create_task(keep_on(attack, target, counts))
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return counts


if __name__ == "__main__":
    main()
