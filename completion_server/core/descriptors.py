"""File descriptors of this process: raises their limit, and checks that the sessions which are allowed fit into it."""

import resource

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


def check_sessions(max_sessions: int, limit: int) -> None:
    """Check that every session may come on a connection of its own, which takes a descriptor.

    Raises:
        ConfigError: there are fewer descriptors than that.

    """
    most = limit - RESERVE
    if max_sessions > most:
        why = f"since the system allows {limit} open files (ulimit -Hn) and {RESERVE} are for other uses"
        msg = f"admission.max_sessions: must be at most {max(0, most)}, {why}, got {max_sessions}"
        raise ConfigError(msg)
