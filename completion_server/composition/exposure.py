"""Warns of connections between machines that have no protection."""

import logging

from completion_server.config import Config
from completion_server.core.addresses import is_loopback

logger = logging.getLogger(__name__)

_OPEN = "others can read what is typed, and any caller may claim to be any user of any tenant"
_COUNTS = "others can read the load and the outcome counts"
_CLEAR = "its password, and what replicas tell each other, travel in clear"


def warn_of_exposure(config: Config, address: str) -> None:
    """Warn of listeners and a Redis without TLS, and of names that anybody may give; `address` is the public one."""
    tls = config.server.tls
    if not tls.certificate:
        _warn_if_reachable("server.listen", address, _OPEN)
    if config.server.metrics_listen:
        _warn_if_reachable("server.metrics_listen", config.server.metrics_listen, _COUNTS)
    if config.admission.trust_user_names and not tls.client_ca:
        consequence = "others can call under any user's name"
        _warn_if_reachable("admission.trust_user_names", address, consequence, lack="client certificates")
    redis = config.redis
    if not redis.is_local and not redis.tls.enabled:
        logger.warning("redis.tls: off, but Redis %s is not on loopback: %s", ", ".join(redis.addresses), _CLEAR)


def _warn_if_reachable(key: str, address: str, consequence: str, lack: str = "TLS") -> None:
    """Warn of an unprotected listener that other machines can reach."""
    if not is_loopback(address):
        logger.warning("%s: listening on %s without %s: %s", key, address, lack, consequence)
