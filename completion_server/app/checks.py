"""The checks of a configuration that need this machine, the model's files or vLLM: those of `serve` and `check-config`.

They come in the order of their cost, and import what is heavy only when they need it. Listeners that other machines can
reach need TLS and authentication, or `server.insecure` and a warning. Other connections without protection are warned
of.
"""

import logging
from collections.abc import Iterator, MutableMapping
from importlib.util import find_spec
from typing import Any

from completion_server.api.rpc.listening import load_certificates
from completion_server.app.models import check_hub, prompt_budget, require_model
from completion_server.auth.authenticator import Authenticator
from completion_server.config import Config
from completion_server.core import descriptors
from completion_server.core.addresses import is_loopback
from completion_server.core.errors import ConfigError
from completion_server.core.events import Emit
from completion_server.requests.limits.file_quotas import open_quotas

logger = logging.getLogger(__name__)
_OPEN = "others can read what is typed or claim to be any user of any tenant"
_REMEDY = "set them (docs/security.md), listen on loopback, or pass --insecure if only a proxy can reach this server"
_COUNTS = "others can read the load and the outcome counts"
_NOBODY = "not set, so nobody can use server.admin_listen: certificates alone tell who calls (auth.certificate_user)"
_CLEAR = "its password, and what replicas tell each other, travel in clear"


def check(config: Config, environ: MutableMapping[str, str]) -> dict[str, Any]:
    """Check what can be checked without loading a model; return vLLM's arguments.

    The prompts are checked where they are loaded.

    Raises:
        ConfigError: the configuration can't be used.

    """
    refuse_exposure(config)
    require_model(config.engine)
    if config.engine.kind == "vllm" and find_spec("vllm") is None:
        raise ConfigError('engine.kind: vLLM is not installed; install the extra cpu or cuda, or set it to "scripted"')
    limits = {
        "admission.max_sessions": config.admission.max_sessions,
        "server.max_connections": config.server.max_connections,
        "server.http_max_connections": config.server.http_max_connections if config.server.http_listen else None,
    }
    descriptors.check_limits(limits)
    load_certificates(config.server)
    make_authenticator(config)
    server, auth = config.server, config.auth
    has_tokens = auth.keys_file or auth.issuer
    if auth.takes_certificates and not has_tokens and server.admin_listen and not server.admin_tls.client_ca:
        logger.warning("server.admin_tls.client_ca: %s", _NOBODY)
    if config.admission.quotas_file:
        open_quotas(config.admission.quotas_file)
    if config.traces.endpoint:
        _require_opentelemetry()
    check_hub(config.engine, environ)
    prompt_budget(config)
    from completion_server.app.engine_factory import engine_arguments

    return engine_arguments(config)


def _require_opentelemetry() -> None:
    try:
        import completion_server.ops.tracing.tracing  # noqa: F401
    except ImportError as error:
        what = "needs OpenTelemetry, which is not installed; install the extra `traces`, such as"
        msg = f"traces.endpoint: {what} pip install 'completion-server[traces]' ({error})"
        raise ConfigError(msg) from error


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


def left_open(config: Config) -> list[str]:
    """Return what the server does for callers without a credential, and at which addresses."""
    server, has_auth = config.server, config.auth.is_on
    is_vouched_for = config.admission.trust_user_names and bool(server.tls.client_ca)
    is_administered = bool(server.admin_listen) and not server.admin_tls.client_ca
    services = (
        ("completions", (server.listen, server.http_listen), not has_auth and not is_vouched_for),
        (
            "administration",
            (server.admin_listen, server.http_listen if server.http_admin else ""),
            not has_auth and is_administered,
        ),
        ("metrics", (server.metrics_listen,), True),
    )
    found = []
    for what, addresses, is_open in services:
        listening = [address for address in addresses if address]
        if is_open and listening:
            found.append(f"{what} at {' and '.join(listening)}")
    return found


def refuse_exposure(config: Config) -> None:
    """Check that listeners that other machines can reach have TLS and authentication, unless `server.insecure` is set.

    Raises:
        ConfigError: one lacks either; the message says of each what to do.

    """
    if not config.server.insecure and (exposed := tuple(_exposed(config))):
        raise ConfigError("\n".join(f"{each}: {_REMEDY}" for each in exposed))


def warn_of_exposure(config: Config, address: str) -> None:
    """Warn of listeners and a Redis without protection; `address` is the public one."""
    exposed = "; ".join(_exposed(config, address))
    if exposed:
        logger.warning("server.insecure: %s: %s", exposed, _OPEN)
    metrics_address = config.server.metrics_listen
    if metrics_address and not is_loopback(metrics_address):
        logger.warning("server.metrics_listen: listening on %s without TLS: %s", metrics_address, _COUNTS)
    redis = config.redis
    if not redis.is_local and not redis.tls.enabled:
        logger.warning("redis.tls: off, but Redis %s is not on loopback: %s", ", ".join(redis.addresses), _CLEAR)


def _exposed(config: Config, address: str = "") -> Iterator[str]:
    """Yield each listener that other machines can reach and that lacks TLS or authentication, and what it lacks.

    `address` is that of the public listener if it is bound. A proxy that vouches for names with its certificate counts
    as authentication, and so do the certificates of operators.
    """
    server = config.server
    tls, admin_tls = server.tls, server.admin_tls
    has_auth = config.auth.is_on
    knows_callers = has_auth or (config.admission.trust_user_names and bool(tls.client_ca))
    knows_operators = has_auth or bool(admin_tls.client_ca)
    for key, listening, section, has_tls, is_authenticated in (
        ("listen", address or server.listen, "tls", bool(tls.certificate), knows_callers),
        ("http_listen", server.http_listen, "tls", bool(tls.certificate), knows_callers),
        ("admin_listen", server.admin_listen, "admin_tls", bool(admin_tls.certificate), knows_operators),
    ):
        lacks = [] if has_tls else [f"TLS (server.{section})"]
        if not is_authenticated:
            lacks.append("authentication ([auth])")
        if listening and lacks and not is_loopback(listening):
            yield f"server.{key}: other machines can reach {listening}, and it lacks {' and '.join(lacks)}"


def make_authenticator(config: Config, emit: Emit = lambda _event: None) -> Authenticator | None:
    """Return what verifies callers, None if authentication is off.

    Raises:
        ConfigError: the file of API keys, the key set or the list of revoked certificates can't be used.

    """
    if not config.auth.is_on:
        return None
    tls, admin_tls = config.server.tls, config.server.admin_tls
    return Authenticator(config.auth, emit=emit, client_cas=tuple(filter(None, (tls.client_ca, admin_tls.client_ca))))
