"""File descriptors of this process: raises their limit, and checks that all allowed connections fit into it."""

import resource
from collections.abc import Mapping

from completion_server.core.errors import ConfigError

RESERVE = 256
"""Descriptors for all that is no session: a server with an engine holds about 40, the rest is for `Complete` calls,
health checks, scrapes and operators."""

_MOST = 1_048_576
"""The kernel's default ceiling (fs.nr_open); a limit of infinity can't be set beyond it."""


def raise_limit() -> int:
    """Let this process open as many files as the system allows it, and return that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft if soft != resource.RLIM_INFINITY else limit


def max_connections() -> int:
    """Return how many connections may be open at once: each takes a descriptor."""
    return max(1, raise_limit() - RESERVE)


def check_limits(limits: Mapping[str, int | None]) -> None:
    """Check that as many connections as each of the `limits` allows, by configuration key, can be open at once.

    A session may come on a connection of its own.

    Raises:
        ConfigError: there are fewer descriptors than that; the message has a line for each key.

    """
    most = max_connections()
    why = f"since the system's limit of open files (ulimit -Hn) less {RESERVE} for other uses allows no more"
    faults = [
        f"{key}: must be at most {most}, {why}, got {given}"
        for key, given in limits.items()
        if given is not None and given > most
    ]
    if faults:
        raise ConfigError("\n".join(faults))
