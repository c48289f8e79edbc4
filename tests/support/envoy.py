"""The real Envoy, which a laptop may lack."""

import os

import pytest

from loadtest.bench.replicas.envoy import EnvoyMissingError, find_envoy


def require_envoy() -> str:
    """Return the path of the binary. Without it a laptop skips the test; a build server fails."""
    try:
        return str(find_envoy())
    except EnvoyMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
