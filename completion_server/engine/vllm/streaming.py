"""Weights that vLLM streams, from an object storage or a disk, with the packages runai-model-streamer*."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from completion_server.core.errors import ConfigError

_FORMAT = "runai_streamer"
_PACKAGE = "runai-model-streamer"
_PARTS = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Names of the package's parts, by the addresses that they are for."""


def check_streaming(vllm: Mapping[str, Any]) -> None:
    """Check that `[engine.vllm]` streams the weights that it says are elsewhere, and that the packages are there.

    Raises:
        ConfigError: another loader would ignore `model_weights`, it is no address, or a package is missing.

    """
    weights, load_format = str(vllm.get("model_weights") or ""), str(vllm.get("load_format") or "auto")
    is_streamed = load_format.startswith(_FORMAT)
    scheme, separator, _path = weights.partition("://")
    if weights and not (separator and scheme in _PARTS):
        expected = " or ".join(f"{each}://" for each in _PARTS)
        raise ConfigError(f"engine.vllm.model_weights: must begin with {expected}, got {weights}")
    if weights and not is_streamed:
        raise ConfigError(f'engine.vllm.load_format: must be "{_FORMAT}" with model_weights, got "{load_format}"')
    needed = [_PACKAGE] if is_streamed else []
    needed += [f"{_PACKAGE}-{_PARTS[scheme]}"] if weights else []
    if missing := [each for each in needed if find_spec(each.replace("-", "_")) is None]:
        raise ConfigError(f'engine.vllm.load_format: "{load_format}" needs {" and ".join(missing)}, not installed')
