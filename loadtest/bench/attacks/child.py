"""The process that runs one attack. A line on standard input ends it; it then prints its counts."""

import asyncio
import contextlib
import json
import os
import sys

import click

from loadtest.bench.attacks.kinds import ATTACKS

_NICENESS = 10
"""Niceness of the process: a real attacker has another machine and takes no CPU from the server."""


@click.command()
@click.argument("name", type=click.Choice(list(ATTACKS)))
@click.argument("address")
def main(name: str, address: str) -> None:
    """Run the attack NAME on the server at ADDRESS until a line comes on standard input."""
    os.nice(_NICENESS)
    counts = asyncio.run(_attack(name, address))
    click.echo(json.dumps(counts))


async def _attack(name: str, address: str) -> dict[str, int]:
    attack = ATTACKS[name](address)
    running = asyncio.create_task(attack.keep_on())
    await asyncio.to_thread(sys.stdin.readline)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return dict(attack.counts)


if __name__ == "__main__":
    main()
