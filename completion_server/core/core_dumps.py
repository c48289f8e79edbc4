"""Core dumps of this process and of those that it starts: a dump would have the text that users type."""

import resource


def switch_off() -> None:
    """Let the system write no core dump of this process, nor of the processes that it starts later.

    The limit is 1 byte, not 0, where that is allowed. No core file is as short, and Linux takes 1 to mean that no dump
    is piped to a crash handler either, which a limit of 0 does not prevent.

    A process that hides itself whole (PR_SET_DUMPABLE) could not be profiled by its own user, nor could the server see
    which sockets and shared memory a failed engine leaves behind.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = min(hard, 1) if hard != resource.RLIM_INFINITY else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
