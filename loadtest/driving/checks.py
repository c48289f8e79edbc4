"""Checks before a run: that each target answers, and that the workers may open enough files."""

import resource
import socket
from collections.abc import Sequence
from itertools import pairwise

from loadtest.driving.worker import client_settings_of, make_target
from loadtest.processes.counters import GENERATED_TOKENS, MetricsError, read_counter
from loadtest.targets import TargetError, TargetSpec
from loadtest.traffic.scenario import Scenario

_CONNECT_S = 5.0
_OWN_FILES = 256
"""Descriptors that a worker needs besides its sessions' connections."""


class CheckError(Exception):
    """A run can't start; the message gives the reason and a remedy."""


def check(scenario: Scenario, specs: Sequence[TargetSpec], num_workers: int) -> None:
    """Check the targets, and raise the limit of open files as far as the system allows.

    Raises:
        CheckError: a target does not answer, or the limit is too low.

    """
    names = sorted(spec.name for spec in specs)
    for first, second in pairwise(names):
        if first == second:
            msg = f"two targets have the name {first!r}; give them others: NAME=KIND://..."
            raise CheckError(msg)
    for spec in specs:
        _check_target(spec, scenario)
        allow_files(num_files(spec, scenario, num_workers), num_workers)


def num_files(spec: TargetSpec, scenario: Scenario, num_workers: int) -> int:
    """Return the largest number of files that a worker may have open."""
    sessions = -(-(scenario.sessions + scenario.abusers.count) // num_workers)
    shared = spec.num_connections(sessions) * len(spec.hosts)
    return (min(sessions, shared) if shared else sessions) + _OWN_FILES


def allow_files(needed: int, num_workers: int) -> None:
    """Raise the limit of open files for processes that are started from now on.

    Raises:
        CheckError: the system does not allow it.

    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        msg = (
            f"each of {num_workers} workers needs {needed} open files and may have {hard}: `ulimit -n {needed}` "
            "(as root, or in the limits of the service or container), more --workers, or ?connections=64 at the target"
        )
        raise CheckError(msg)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_target(spec: TargetSpec, scenario: Scenario) -> None:
    try:
        make_target(spec, client_settings_of(scenario))
    except TargetError as error:
        raise CheckError(str(error)) from error
    for host in spec.hosts:
        name, _, port = host.rpartition(":")
        try:
            socket.create_connection((name.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            msg = f"target {spec.name}: nothing answers at {host}: {error}"
            raise CheckError(msg) from error
    if spec.metrics_url:
        try:
            read_counter(spec.metrics_url, GENERATED_TOKENS)
        except MetricsError as error:
            msg = f"target {spec.name}: metrics: {error}"
            raise CheckError(msg) from error
