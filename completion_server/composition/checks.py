"""The checks of a configuration that need this machine, the model's files or vLLM: those of `serve` and `check-config`.

They come in the order of their cost, and import what is heavy only when they need it. Connections between machines that
have no protection are warned of.
"""

import logging
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from completion_server.admission.quota_file import load_quotas
from completion_server.composition.models import check_hub, prompt_budget, require_model
from completion_server.config import Config
from completion_server.core import descriptors
from completion_server.core.addresses import is_loopback
from completion_server.core.errors import ConfigError
from completion_server.rpc.listening import check_tls
from completion_server.telemetry.tracing.tracing import check_usable

logger = logging.getLogger(__name__)
_OPEN = "others can read what is typed, and any caller may claim to be any user of any tenant"
_COUNTS = "others can read the load and the outcome counts"
_CLEAR = "its password, and what replicas tell each other, travel in clear"


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
        "server.http_max_connections": config.server.http_max_connections if config.server.http_listen else None,
    }
    descriptors.check_limits(limits)
    check_tls(config.server)
    if config.admission.quotas_file:
        load_quotas(Path(config.admission.quotas_file))
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


def warn_of_exposure(config: Config, address: str) -> None:
    """Warn of listeners and a Redis without TLS, and of names that anybody may give; `address` is the public one."""
    tls = config.server.tls
    if not tls.certificate:
        _warn_if_reachable("server.listen", address, _OPEN)
        if config.server.http_listen:
            _warn_if_reachable("server.http_listen", config.server.http_listen, _OPEN)
    if config.server.metrics_listen:
        _warn_if_reachable("server.metrics_listen", config.server.metrics_listen, _COUNTS)
    if config.admission.trust_user_names and not tls.client_ca:
        consequence = "others can call under any user's name"
        for each in filter(None, (address, config.server.http_listen)):
            _warn_if_reachable("admission.trust_user_names", each, consequence, lack="client certificates")
    redis = config.redis
    if not redis.is_local and not redis.tls.enabled:
        logger.warning("redis.tls: off, but Redis %s is not on loopback: %s", ", ".join(redis.addresses), _CLEAR)


def _warn_if_reachable(key: str, address: str, consequence: str, lack: str = "TLS") -> None:
    """Warn of an unprotected listener that other machines can reach."""
    if not is_loopback(address):
        logger.warning("%s: listening on %s without %s: %s", key, address, lack, consequence)
