"""The page's files, which editors/playground builds, and the headers that keep everything else out of it."""

import secrets
from functools import cache
from importlib.resources import files

_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
          "svg": "image/svg+xml"}  # fmt: skip
NAMES = ("main.js", "page.css", "icon.svg")
"""The files besides the page itself."""
_NONCE = "NONCE"
"""Stands in the page for the nonce of the editor's style elements."""
_COMMON = {"cache-control": "no-cache", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers. Its policy allows files of this server and style elements with the nonce."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'self'; style-src 'self' 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; object-src 'none'"
    )
    body = read("index.html").replace(_NONCE.encode(), nonce.encode())
    return body, headers_of("index.html") | {"content-security-policy": policy, "cache-control": "no-store"}


@cache
def read(name: str) -> bytes:
    """Return a file."""
    return files(__package__).joinpath("static", name).read_bytes()


def headers_of(name: str) -> dict[str, str]:
    """Return the headers of a file."""
    return _COMMON | {"content-type": _TYPES[name.rpartition(".")[2]]}
