"""Which users move when one of four replicas is killed, and how even their streams are before."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from rich.console import Console

from loadtest.bench.replicas.envoy import Envoy, adapted, load_shipped
from loadtest.bench.replicas.users import NamedUsers, OpenStream, busiest_over_mean, names_of
from loadtest.bench.runner.server import ServerProcess

_USERS = [f"user-{number}" for number in range(1024)]  # 1.25 * 1024 / 4 is a whole number
_HASHES: Mapping[str, Mapping[str, object]] = {
    "maglev": {"lb_policy": "MAGLEV"},
    "ring_hash_65536": {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 65_536}},
    "ring_hash_1024": {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 1024}},
}
_GONE_S = 20.0
_QUIET_S = 0.05


def measure_moves(replicas: Sequence[ServerProcess], console: Console) -> dict[str, float | None]:
    """Return the figures. The last replica is killed.

    Raises:
        StartError: Envoy did not start.
        EnvoyMissingError: it is not installed.

    """
    addresses: list[str] = [each.ready["address"] for each in replicas]
    found = _compare_hashes(addresses, console)
    document = adapted(load_shipped(), addresses)
    with Envoy.running(document, len(replicas)) as envoy:
        console.print(f"killing one of {len(replicas)} replicas, {len(_USERS)} users with a stream each", style="dim")
        return found | asyncio.run(_measure(envoy, replicas[-1], len(replicas)))


def _compare_hashes(addresses: Sequence[str], console: Console) -> dict[str, float | None]:
    """Return how even each hash of Envoy is, and the users of other replicas that it moves when one is removed."""
    figures: dict[str, float | None] = {}
    for name, cluster in _HASHES.items():
        console.print(f"keys by {name.replace('_', ' ')}", style="dim")
        keys = [_keys(addresses[:num], cluster) for num in (len(addresses), len(addresses) - 1)]
        moved = [user for user in _USERS if keys[0][user] != keys[1][user]]
        figures[f"{name}_busiest_over_mean"] = round(busiest_over_mean(keys[0], len(addresses)), 4)
        figures[f"{name}_moved_share"] = _share(len(moved))
        figures[f"{name}_moved_of_others_share"] = _share(sum(keys[0][user] != addresses[-1] for user in moved))
    return figures


def _keys(addresses: Sequence[str], cluster: Mapping[str, object]) -> dict[str, str]:
    """Return each user's replica behind an Envoy with other settings of the cluster."""

    async def ask(address: str) -> dict[str, str]:
        async with NamedUsers(address) as users:
            return await _replicas_of(users)

    with Envoy.running(adapted(load_shipped(), addresses, cluster), len(addresses)) as envoy:
        return asyncio.run(ask(envoy.address))


async def _measure(envoy: Envoy, lost: ServerProcess, num: int) -> dict[str, float | None]:
    address: str = lost.ready["address"]
    async with NamedUsers(envoy.address) as users:
        own = await _replicas_of(users)
        streams = await users.open_streams(_USERS)
        before = {user: stream.replica for user, stream in streams.items()}
        os.kill(lost.pid, signal.SIGKILL)
        gone = [user for user in _USERS if before[user] == address]
        for user in gone:
            await asyncio.wait_for(streams[user].call.code(), _GONE_S)
        again: dict[str, OpenStream] = await users.open_streams(gone)
        after = {user: stream.replica for user, stream in (streams | again).items()}
        for stream in users.streams:
            stream.call.cancel()
        while sum(envoy.open_requests().values()):  # noqa: ASYNC110 - Envoy can only be polled
            await asyncio.sleep(_QUIET_S)
        moved = [user for user, replica in (await _replicas_of(users)).items() if replica != own[user]]
    return {
        "busiest_over_mean": round(busiest_over_mean(before, num), 4),
        "busiest_over_mean_after_kill": round(busiest_over_mean(after, num - 1), 4),
        "displaced_by_bound_share": _share(sum(own[user] != before[user] for user in _USERS)),
        "moved_share_after_kill": _share(sum(before[user] != after[user] for user in _USERS)),
        "moved_keys_share_after_kill": _share(len(moved)),
        "moved_keys_of_others_share": _share(sum(own[user] != address for user in moved)),
    }


async def _replicas_of(users: NamedUsers) -> dict[str, str]:
    """Return each user's replica, by one call after another, so that the bound moves nobody."""
    return {user: await users.complete(names_of(user)) for user in _USERS}


def _share(num: int) -> float:
    return round(num / len(_USERS), 4)
