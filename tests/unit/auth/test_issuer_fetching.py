"""Documents of an issuer are fetched whole, small, soon and from where they were asked for, or not at all."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from completion_server.auth import fetching
from completion_server.auth.fetching import MAX_BYTES, fetch


class _Handler(BaseHTTPRequestHandler):
    """Answers as the path says."""

    is_over: threading.Event

    def do_GET(self) -> None:
        body = {"/large": b"x" * (MAX_BYTES + 1)}.get(self.path, b"{}")
        status = {"/away": 404, "/elsewhere": 302}.get(self.path, 200)
        if self.path == "/silent":
            self.is_over.wait(30)
            return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    is_over = threading.Event()
    handler = type("Handler", (_Handler,), {"is_over": is_over})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        is_over.set()
        server.shutdown()
        thread.join(30)


def test_a_document_is_fetched_without_a_proxy(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert fetch(f"{address}/keys") == b"{}"


@pytest.mark.parametrize(
    ("path", "why"),
    [("/large", "more than"), ("/away", "status 404"), ("/elsewhere", "status 302"), ("/silent", "timed out")],
)
def test_a_fetch_that_goes_wrong_is_an_oserror(
    address: str, path: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_STALL_S", 0.2)
    with pytest.raises(OSError, match=why):
        fetch(f"{address}{path}")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://issuer.example/keys", "http://127.0.0.1.example/keys", "https:///keys", "keys"],
)
def test_only_safe_urls_are_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="must be an https URL, or an http URL on loopback"):
        fetch(url)
