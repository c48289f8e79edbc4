"""Fetches small documents of an issuer. Blocks, so it runs beside the event loop."""

import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from completion_server.auth.urls import require_safe

MAX_BYTES = 1024 * 1024
_STALL_S = 3.0
"""How long the other end may send nothing."""
_WHOLE_S = 5.0
_CHUNK = 65_536


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: keys come from the URL that the operator or the issuer named."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:  # noqa: ANN401 - urllib's own signature
        """Let the redirect count as a failure."""


def fetch(url: str) -> bytes:
    """Return the document at an https URL, or an http URL on loopback.

    Raises:
        OSError: it can't be fetched, takes too long, is too large, or is elsewhere.
        ValueError: the URL is not safe.

    """
    require_safe("the URL of a key set", url)
    ends_at = time.monotonic() + _WHOLE_S
    # Nothing between this process and loopback, whatever the environment says about proxies.
    proxies = ProxyHandler({}) if url.startswith("http:") else ProxyHandler()
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "completion-server"})
    data = bytearray()
    try:
        with build_opener(_NoRedirects, proxies).open(request, timeout=_STALL_S) as response:
            while chunk := response.read1(_CHUNK):
                data += chunk
                if len(data) > MAX_BYTES:
                    msg = f"{url} has more than {MAX_BYTES} bytes"
                    raise OSError(msg)
                if time.monotonic() > ends_at:
                    msg = f"{url} took longer than {_WHOLE_S:g} s"
                    raise TimeoutError(msg)
    except HTTPError as error:
        error.close()
        msg = f"{url} answered with status {error.code}"
        raise OSError(msg) from None
    except HTTPException as error:
        msg = f"{url} answered with broken HTTP"
        raise OSError(msg) from error
    return bytes(data)
