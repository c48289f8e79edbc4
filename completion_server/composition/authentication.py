"""Makes the authenticator that the configuration asks for."""

from completion_server.auth.authenticator import Authenticator
from completion_server.config import Config
from completion_server.core.events import Emit, Event


def _ignore(_event: Event) -> None:
    pass


def make_authenticator(config: Config, emit: Emit = _ignore) -> Authenticator | None:
    """Return what verifies callers, None if authentication is off.

    Raises:
        ConfigError: the file of API keys, the key set or the list of revoked certificates can't be used.

    """
    if not config.auth.is_on:
        return None
    tls, admin_tls = config.server.tls, config.server.admin_tls
    return Authenticator(config.auth, emit=emit, client_cas=tuple(filter(None, (tls.client_ca, admin_tls.client_ca))))
