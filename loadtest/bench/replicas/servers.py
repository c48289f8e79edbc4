"""Replicas with the scripted engine: server processes that start together."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from loadtest.bench.runner.schedule import started_together
from loadtest.bench.runner.server import ServerProcess

CONFIG = Path("deploy/local/server.toml")

BEHIND_ENVOY = ("admission.trust_user_names=true", "admission.require_user=true")
"""The settings of a replica that only Envoy reaches."""

SCRIPTED = (
    "engine.kind=scripted",
    "engine.warm_up=false",
    "engine.draft_model=",
    "speculation.mode=fixed",
)
"""An engine that is ready at once."""


def scripted_replicas(
    num: int, overrides: Sequence[str] = (), config: Path = CONFIG, name: str = "replica"
) -> AbstractContextManager[list[ServerProcess]]:
    """Run replicas with the scripted engine behind Envoy.

    Raises:
        StartError: one did not start.

    """
    settings = (*BEHIND_ENVOY, *SCRIPTED, *overrides)
    makers = [partial(ServerProcess, config, settings, f"{name}-{number}", has_metrics=True) for number in range(num)]
    return started_together(makers)
