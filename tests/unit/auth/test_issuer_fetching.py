"""Keys are fetched from where the operator or the issuer named, over real HTTP, or not at all."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from completion_server.auth import issuer
from completion_server.auth.issuer import FetchedKeys
from completion_server.auth.settings import AuthSettings, require_safe
from tests.unit.auth.issuers import Issuer, SigningKey, Wall


class _Handler(BaseHTTPRequestHandler):
    """Answers as the path says."""

    is_over: threading.Event
    keys: bytes

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.is_over.wait(30)
            return
        self.send_response({"/away": 404, "/elsewhere": 302}.get(self.path, 200))
        self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(self.keys)))
        self.end_headers()
        self.wfile.write(self.keys)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def address(signers: list[SigningKey], wall: Wall, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(issuer, "_STALL_S", 0.2)
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    is_over = threading.Event()
    handler = type("Handler", (_Handler,), {"is_over": is_over, "keys": Issuer(wall, first=signers[0]).key_set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        is_over.set()
        server.shutdown()
        thread.join(30)


async def fetched(url: str) -> int:
    """Return the number of keys that came from a URL."""
    settings = AuthSettings(issuer="https://issuer.example", audience="x", jwks_url=url)
    return len((await FetchedKeys(settings, Wall(), lambda *_report: None).renewed()).fingerprints)


@pytest.mark.parametrize(("path", "num"), [("/keys", 1), ("/away", 0), ("/elsewhere", 0), ("/silent", 0)])
async def test_keys_come_from_their_url_alone_and_soon(address: str, path: str, num: int) -> None:
    assert await fetched(address + path) == num


@pytest.mark.parametrize(("exempt", "num"), [("", 0), ("127.0.0.1", 1)])
async def test_no_proxy_stands_before_loopback(
    address: str, exempt: str, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", address)
    monkeypatch.setenv("no_proxy", exempt)
    assert await fetched(f"{address}/keys") == num


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://issuer.example/keys", "http://127.0.0.1.example/keys", "https:///keys", "keys"],
)
def test_only_safe_urls_are_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="must be an https URL, or an http URL on loopback"):
        require_safe("auth.jwks_url", url)
