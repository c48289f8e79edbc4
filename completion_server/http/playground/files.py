"""The page's files, which editors/playground builds, and the headers that keep everything else out of it."""

import secrets
from functools import cache
from importlib.resources import files

from completion_server.http.app import READ, Path
from completion_server.http.endpoints import AsgiScope
from completion_server.http.receiving import Receive
from completion_server.http.writing import Send, write_body

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
NAMES = ("main.js", "page.css", "icon.svg", "licenses.txt")
"""The files besides the page itself."""
_NONCE = b"NONCE"
"""Stands in the page for the nonce of the editor's style elements."""
_COMMON = {"cache-control": "no-cache", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


def page_paths() -> dict[str, Path]:
    """Return the paths of the page and its files."""
    found = {f"/playground/{name}": _path(name) for name in NAMES}
    return found | {"/": _path("index.html")}


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers. Its policy allows files of this server and style elements with the nonce."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'self'; style-src 'self' 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; object-src 'none'"
    )
    body = read("index.html").replace(_NONCE, nonce.encode())
    return body, _COMMON | {"content-security-policy": policy, "cache-control": "no-store"}


@cache
def read(name: str) -> bytes:
    """Return a file."""
    return files(__package__).joinpath("static", name).read_bytes()


def _path(name: str) -> Path:
    async def answer(_scope: AsgiScope, _receive: Receive, send: Send) -> None:
        body, headers = page() if name == "index.html" else (read(name), _COMMON)
        await write_body(send, 200, body, {"content-type": _TYPES[name.rpartition(".")[2]]} | headers)

    return Path(answer, READ)
