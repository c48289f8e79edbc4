"""File descriptors of this process: raises their limit, and checks that all allowed connections fit into it."""

import resource
from collections.abc import Mapping

from completion_server.core.errors import ConfigError

RESERVE = 256
"""Descriptors for other uses than sessions. A server with an engine holds about 40; the rest is for `Complete` calls,
health checks, scrapes and operators."""

_MAX_LIMIT = 1_048_576
"""The kernel's default maximum (fs.nr_open). A limit of infinity can't be raised beyond it."""


def raise_limit() -> int:
    """Raise the limit of open files of this process to what the system allows, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft if soft != resource.RLIM_INFINITY else limit


def max_connections() -> int:
    """Return how many connections may be open at once; each takes a descriptor."""
    return max(1, raise_limit() - RESERVE)


def check_limits(limits: Mapping[str, int | None]) -> None:
    """Check that there are enough descriptors for each limit of connections or sessions, given by configuration key.

    A limit of sessions counts in full, because each session may have its own connection.

    Raises:
        ConfigError: there are fewer descriptors; the message has a line for each key.

    """
    most = max_connections()
    reason = f"because the system's limit of open files (ulimit -Hn) minus {RESERVE} for other uses allows no more"
    faults = [
        f"{key}: must be at most {most}, {reason}, got {given}"
        for key, given in limits.items()
        if given is not None and given > most
    ]
    if faults:
        raise ConfigError("\n".join(faults))
