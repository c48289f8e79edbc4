"""Reads secrets from files."""

from pathlib import Path

from completion_server.core.errors import ConfigError

MIN_SECRET_BYTES = 32


def read_secret(key: str, path: Path) -> bytes:
    """Return the secret in a file; `key` names it in errors.

    Raises:
        ConfigError: the file can't be read or is too short.

    """
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        msg = f"{key}: {path} can't be read: {error.strerror}"
        raise ConfigError(msg) from error
    if len(secret) < MIN_SECRET_BYTES:
        msg = f"{key}: {path} must hold at least {MIN_SECRET_BYTES} bytes, got {len(secret)}; make one with: "
        raise ConfigError(f"{msg}openssl rand -hex 32")
    return secret
