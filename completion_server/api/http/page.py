"""The page at `/`, which editors/playground builds: its files, the live figures of the server, and K.

Operators may set K where `server.http_admin` allows it. With authentication on, an operator is a caller with the scope
admin, wherever it is. The rest is about a server without. An admin listener on loopback without client certificates is
open to everybody on its machine. The page gives the same right to a browser on that machine which addresses the server
as such. A proxy there looks like one if it adds no header of those below, so the setting is off unless an operator
knows that there is none.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import Field

from completion_server.api.http.app import READ, WRITE, Path
from completion_server.api.http.dialect import Body, Json, parse, read
from completion_server.api.http.endpoints import AsgiScope, Endpoints
from completion_server.api.http.exchange import Receive, Send, write_body
from completion_server.api.http.openai import OPENAI
from completion_server.api.http.requests import headers_of
from completion_server.core.addresses import is_loopback, is_unix_socket
from completion_server.core.credential import Scope
from completion_server.core.errors import InvalidRequestError, PermissionDeniedError
from completion_server.core.events import AdminChanged, RequestRefused
from completion_server.core.outcome import FinishReason
from completion_server.core.request import Caller
from completion_server.engine.speculation.live import LiveSpeculation, SpeculationLockedError
from completion_server.engine.speculation.schedule import ScheduleError
from completion_server.ops.metrics import Metrics
from completion_server.requests.limits.settings import ServerSettings
from completion_server.requests.service import LoadSnapshot, Service

NAMES = ("main.js", "page.css", "icon.svg", "licenses.txt")
"""The files besides the page itself."""
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
_NONCE = b"NONCE"
"""Stands in the page for the nonce of the editor's style elements."""
_COMMON = {"cache-control": "no-cache", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

_BY = "playground"
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_COUNTED = {
    FinishReason.STOP: "answered",
    FinishReason.LENGTH: "answered",
    FinishReason.SUPERSEDED: "superseded",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.SHED: "shed",
}


def page_paths() -> dict[str, Path]:
    """Return the paths of the page and its files."""
    return {"/": _path("index.html")} | {f"/playground/{name}": _path(name) for name in NAMES}


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers. Its policy allows files of this server and style elements with the nonce."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'self'; style-src 'self' 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; object-src 'none'"
    )
    body = content("index.html").replace(_NONCE, nonce.encode())
    return body, _COMMON | {"content-security-policy": policy, "cache-control": "no-store"}


@cache
def content(name: str) -> bytes:
    """Return what is in a file."""
    return files(__package__).joinpath("playground", "static", name).read_bytes()


def _path(name: str) -> Path:
    async def answer(_scope: AsgiScope, _receive: Receive, send: Send) -> None:
        body, headers = page() if name == "index.html" else (content(name), _COMMON)
        kind = _TYPES[name.rpartition(".")[2]]
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        await write_body(send, 200, body, {"content-type": kind + charset} | headers)

    return Path(answer, READ)


def figures(metrics: Metrics, load: LoadSnapshot) -> dict[str, Json]:
    """Return the present load, and the ended requests since the start. There is no text and no name in them."""
    counts, tokens, ttft_s = dict.fromkeys(_COUNTED.values(), 0), metrics.counts("tokens"), metrics.median_ttft_s()
    num_ended = metrics.num_ended()
    for reason, name in _COUNTED.items():
        counts[name] += num_ended.get(reason.value, 0)
    return {
        "sessions": load.num_sessions,
        "live": load.num_live,
        "queued": load.num_queued,
        "running": load.num_occupied,
        "slots": load.num_slots,
        **counts,
        "prompt_tokens": tokens["prompt",],
        "cached_tokens": tokens["cached_prompt",],
        "ttft_ms": None if ttft_s is None else ttft_s * 1000,
    }


class _SetSpeculation(Body):
    k: Annotated[int, Field(ge=0, le=1000)] | None
    """None lets the server choose."""


class HttpAdmin:
    """Shows one server to the page, and changes it."""

    def __init__(
        self,
        service: Service,
        speculation: LiveSpeculation,
        metrics: Metrics,
        about: Callable[[], dict[str, str]],
        closed_reason: str,
    ) -> None:
        """Show these parts. `about` names the models and the version, and is called once the engine has started.

        `closed_reason` says why nobody may change the server, see `closed_reason`.
        """
        self._service = service
        self._speculation = speculation
        self._metrics = metrics
        self._about = about
        self._closed_reason = closed_reason

    def paths(self, endpoints: Endpoints) -> dict[str, Path]:
        """Return the paths."""
        change = endpoints.action(self._set_speculation, Scope.COMPLETE, OPENAI, RequestRefused)
        return {
            "/admin/status": Path(endpoints.document(self._status, OPENAI), READ),
            "/admin/speculation": Path(change, WRITE),
        }

    def _status(self, scope: AsgiScope, caller: Caller | None) -> Json:
        load, active = self._service.load(), self._speculation.active
        return {
            **self._about(),
            **figures(self._metrics, load),
            "k": self._speculation.num_speculative_tokens(load.num_occupied),
            "k_max": active.max_num_speculative_tokens,
            "k_mode": active.mode.value,
            "k_locked": self._locked_reason(scope, caller) or active.locked_reason,
            "acceptance": self._speculation.figures().acceptance,
        }

    def _set_speculation(self, scope: AsgiScope, caller: Caller, data: bytes) -> Json:
        if reason := self._locked_reason(scope, caller):
            raise PermissionDeniedError(reason)
        if "origin" not in headers_of(scope) and caller.credential is None:
            raise PermissionDeniedError("only for the server's own page")  # every browser sends it with a POST
        k, before = read(_SetSpeculation, parse(data)).k, self._speculation.active
        try:
            self._speculation.set_auto(_BY) if k is None else self._speculation.set_fixed(k, _BY)
        except ScheduleError as error:
            raise InvalidRequestError("k", error.fault) from None
        except SpeculationLockedError as error:
            raise PermissionDeniedError(str(error)) from None
        self._service.emit(AdminChanged(caller, "speculation", str(before), str(self._speculation.active)))
        return self._status(scope, caller)

    def _locked_reason(self, scope: AsgiScope, caller: Caller | None) -> str:
        """Return why a caller may not change the server; "" for an operator."""
        credential = caller.credential if caller else None
        if self._closed_reason:
            return self._closed_reason
        if credential is None:
            return refusal_reason((scope["client"] or ("",))[0], headers_of(scope))
        return "" if Scope.ADMIN in credential.scopes else f"only with a token that has the scope {Scope.ADMIN.value}"


def closed_reason(server: ServerSettings, *, trusts_names: bool) -> str:
    """Return why no caller of the HTTP listener can be an operator; "" if some can."""
    if not server.http_admin:
        return "the page may not change this server (server.http_admin)"
    if not server.admin_listen:
        return "the server has no admin listener (server.admin_listen)"
    if is_unix_socket(server.admin_listen) or server.admin_tls.client_ca:
        return "operators must use the admin listener: completion-server speculation"
    return "callers come through a proxy, which does not tell who is an operator" if trusts_names else ""


def refusal_reason(client: str, headers: Mapping[str, str]) -> str:
    """Return why the caller at the IP address `client` is no operator, if callers can be; "" if it is one."""
    if not is_loopback(f"{f'[{client}]' if ':' in client else client}:0"):
        return "only for a browser on the server's machine"
    host = headers.get("host", "")
    has_port = host.rpartition(":")[2].isdecimal() and not host.endswith("]")
    if any(name in headers for name in _FORWARDED) or not is_loopback(host if has_port else f"{host}:0"):
        return "only for a browser on the server's machine, without a proxy"
    return ""
