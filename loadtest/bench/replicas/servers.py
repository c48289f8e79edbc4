"""Replicas with the scripted engine: server processes that start together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.bench.common.server import ServerProcess

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


@contextmanager
def scripted_replicas(
    num: int, overrides: Sequence[str] = (), config: Path = CONFIG, name: str = "replica"
) -> Iterator[list[ServerProcess]]:
    """Run replicas with the scripted engine behind Envoy.

    Raises:
        StartError: one did not start.

    """
    settings = (*BEHIND_ENVOY, *SCRIPTED, *overrides)
    with ExitStack() as stack, ThreadPoolExecutor(num) as starters:
        futures = [
            starters.submit(ServerProcess, config, settings, f"{name}-{number}", has_metrics=True)
            for number in range(num)
        ]
        found, failure = [], None
        for future in futures:
            try:
                found.append(future.result())
            except Exception as error:  # noqa: BLE001 - those that started are stopped before it is raised
                failure = error
            else:
                stack.callback(found[-1].stop)
        if failure is not None:
            raise failure
        yield found
