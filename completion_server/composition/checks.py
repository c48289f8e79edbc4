"""The checks of a configuration that need this machine, the model's files or vLLM: those of `serve` and `check-config`.

They come in the order of their cost, and import what is heavy only when they need it.
"""

from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Any

from completion_server.composition.model_limits import prompt_budget
from completion_server.composition.model_source import check_hub, require_model
from completion_server.config import Config
from completion_server.core import descriptors
from completion_server.core.errors import ConfigError
from completion_server.rpc.listening import check_tls
from completion_server.telemetry.tracing.tracing import check_usable


def check(config: Config, environ: MutableMapping[str, str]) -> dict[str, Any]:
    """Check what can be checked without loading a model; return vLLM's arguments.

    The prompts are checked where they are loaded.

    Raises:
        ConfigError: the configuration can't be used.

    """
    require_model(config.engine)
    if config.engine.kind == "vllm" and find_spec("vllm") is None:
        raise ConfigError('engine.kind: vLLM is not installed; install the extra cpu or cuda, or set it to "scripted"')
    limits = {
        "admission.max_sessions": config.admission.max_sessions,
        "server.max_connections": config.server.max_connections,
    }
    descriptors.check_limits(limits)
    check_tls(config.server)
    check_usable(config.traces, environ)
    check_hub(config.engine, environ)
    prompt_budget(config)
    from completion_server.composition.engine_factory import engine_arguments

    return engine_arguments(config)


def not_checked(config: Config) -> list[str]:
    """Return what `check` leaves to the start of a server."""
    found = ["whether the ports are free"]
    if config.engine.kind == "vllm":
        found.append("whether the model loads and fits into memory")
    if config.redis.addresses:
        found.append("whether Redis answers")
    if config.traces.endpoint:
        found.append("whether the collector of traces answers")
    return found
