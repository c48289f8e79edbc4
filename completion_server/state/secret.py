"""The secret that all replicas share: it hides names in Redis, and gives keys for encryption."""

import hashlib
import hmac
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from completion_server.core.errors import ConfigError
from completion_server.state.settings import MIN_SECRET_BYTES, RedisSettings

_NAME_BYTES = 16
_KEY_BYTES = 32
_NO_SECRET = b"completion-server: a Redis on loopback needs no secret"
"""Not secret. It only hides text from a glance at the names in a Redis that no other machine can reach."""


class Secret:
    """Makes names and keys that only the holders of the secret can make."""

    def __init__(self, secret: bytes) -> None:
        """Hold the secret; the same secret gives the same names and keys in every process."""
        self._secret = secret
        self._names_key = self.derive("names")

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for a purpose (HKDF, RFC 5869). Keys for different purposes are independent."""
        return HKDF(SHA256(), _KEY_BYTES, salt=None, info=purpose.encode()).derive(self._secret)

    def name(self, kind: str, text: str) -> str:
        """Return a name of 32 hexadecimal digits for a text, from which the text can't be found."""
        keyed = hashlib.blake2b(text.encode(), digest_size=_NAME_BYTES, key=self._names_key, person=kind.encode())
        return keyed.hexdigest()

    def __eq__(self, other: object) -> bool:
        """Return whether two secrets are the same."""
        return isinstance(other, Secret) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        """Return a hash that reveals nothing."""
        return hash(self._names_key)


def load_secret(settings: RedisSettings) -> Secret:
    """Read the secret from `redis.secret_file`. Without a file it is a constant, which is enough on loopback.

    Raises:
        ConfigError: the file can't be read or is too short.

    """
    if not settings.secret_file:
        return Secret(_NO_SECRET)
    try:
        secret = Path(settings.secret_file).read_bytes().strip()
    except OSError as error:
        msg = f"redis.secret_file: {settings.secret_file} can't be read: {error.strerror}"
        raise ConfigError(msg) from error
    if len(secret) < MIN_SECRET_BYTES:
        msg = (
            f"redis.secret_file: {settings.secret_file} must hold at least {MIN_SECRET_BYTES} bytes, got "
            f"{len(secret)}; make one with: openssl rand -hex 32"
        )
        raise ConfigError(msg)
    return Secret(secret)
