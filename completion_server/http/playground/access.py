"""Who may change the server from the page, where `server.http_admin` allows it. Pure.

With authentication on, that is a caller with the scope admin, wherever it is. The rest is about a server without.
An admin listener on loopback without client certificates is open to everybody on its machine. The page gives the same
right to a browser on that machine which addresses the server as such. A proxy there looks like one if it adds no header
of those below, so the setting is off unless an operator knows that there is none.
"""

from collections.abc import Mapping

from completion_server.admission.settings import ServerSettings
from completion_server.core.addresses import is_loopback, is_unix_socket
from completion_server.core.credential import Credential, Scope

_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def closed_reason(server: ServerSettings, *, trusts_names: bool) -> str:
    """Return why no caller of the HTTP listener can be an operator; "" if some can."""
    if not server.http_admin:
        return "the page may not change this server (server.http_admin)"
    if not server.admin_listen:
        return "the server has no admin listener (server.admin_listen)"
    if is_unix_socket(server.admin_listen) or server.admin_tls.client_ca:
        return "operators must use the admin listener: completion-server speculation"
    if trusts_names:
        return "callers come through a proxy, which does not tell who is an operator"
    return ""


def refusal_reason(client: str, headers: Mapping[str, str]) -> str:
    """Return why the caller at the IP address `client` is no operator, if callers can be; "" if it is one."""
    if not is_loopback(f"{_bracketed(client)}:0"):
        return "only for a browser on the server's machine"
    if any(name in headers for name in _FORWARDED) or not is_loopback(_with_port(headers.get("host", ""))):
        return "only for a browser on the server's machine, without a proxy"
    return ""


def scope_reason(credential: Credential) -> str:
    """Return why a verified caller is no operator, if callers can be; "" if it is one."""
    return "" if Scope.ADMIN in credential.scopes else f"only with a token that has the scope {Scope.ADMIN.value}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _with_port(host: str) -> str:
    """Return a Host header with a port."""
    return host if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else f"{host}:0"
