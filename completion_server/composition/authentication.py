"""Makes the authenticator that the configuration asks for."""

from completion_server.auth.authenticator import CredentialVerifier
from completion_server.auth.settings import AuthSettings
from completion_server.core.events import Emit, Event


def _ignore(_event: Event) -> None:
    pass


def make_authenticator(settings: AuthSettings, emit: Emit = _ignore) -> CredentialVerifier | None:
    """Return what verifies callers, None if authentication is off.

    Raises:
        ConfigError: the file of API keys, the key set or the list of revoked certificates can't be used.

    """
    return CredentialVerifier(settings, emit=emit) if settings.is_on else None
