"""The URLs that keys may be fetched from. Pure."""

from urllib.parse import urlsplit

from completion_server.core.addresses import is_loopback


def require_safe(key: str, url: str) -> None:
    """Check that nobody on the way can replace what a URL answers.

    Raises:
        ValueError: it is neither an https URL nor an http URL on loopback; the message begins with `key`.

    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(f"{host}:0"))):
        msg = f"{key}: must be an https URL, or an http URL on loopback, got {url!r}"
        raise ValueError(msg)
