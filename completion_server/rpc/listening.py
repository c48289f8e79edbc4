"""Checks of the listeners' addresses and TLS files, made before anything is loaded."""

import contextlib
import errno
import shlex
import socket
import ssl
from pathlib import Path

import grpc
import psutil

from completion_server.admission.settings import ServerSettings, TlsSettings
from completion_server.core.addresses import is_unix_socket, split_address
from completion_server.core.errors import ConfigError

_ASK = "`completion-server status` asks a running server"
_MAX_COMMAND = 100
_CONNECT_S = 1.0
_ANY = ("0.0.0.0", "::")
_MAPPED = "::ffff:"
"""gRPC listens on an address of IPv4 by a socket of IPv6."""


def check_ports(settings: ServerSettings) -> None:
    """Check that the configured addresses are free, also of each other.

    Raises:
        ConfigError: an address is in use, or does not belong to this machine. The message says what holds it.

    """
    sockets = set[str]()
    with contextlib.ExitStack() as bound:
        for key in ("listen", "admin_listen", "metrics_listen", "http_listen"):
            address = getattr(settings, key)
            try:
                if is_unix_socket(address):
                    _check_socket(address, sockets)
                elif address:
                    bound.enter_context(_bound(*split_address(address)))
            except OSError as error:
                cause = error.strerror or str(error)
                if error.errno == errno.EADDRINUSE:
                    cause = f"{_holder(address)}; {_ASK}"
                msg = f"server.{key}: can't listen on {address}: {cause}"
                raise ConfigError(msg) from error


def _bound(host: str, port: int) -> socket.socket:
    # "::" stands for all addresses of IPv4, too, as in gRPC.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")


def _check_socket(address: str, others: set[str]) -> None:
    """Check that no server accepts connections on a Unix socket, and that it is not among `others`, which it joins.

    A file that a server has left is replaced.
    """
    scheme, _, name = address.partition(":")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_S)
        is_free = client.connect_ex(f"\0{name}" if scheme == "unix-abstract" else name) != 0
    if address in others or not is_free:
        raise OSError(errno.EADDRINUSE, "Address already in use")
    others.add(address)


def _holder(address: str) -> str:
    """Return which process listens on an address, as far as this user may know."""
    if is_unix_socket(address):
        return "it is in use by another server or listener"
    host, port = split_address(address)
    with contextlib.suppress(psutil.Error):
        for each in psutil.net_connections("tcp"):
            if each.status != psutil.CONN_LISTEN or not each.laddr or not each.pid or each.laddr.port != port:
                continue
            if host in _ANY or each.laddr.ip.removeprefix(_MAPPED) in (host, *_ANY):
                return f"it is in use by process {each.pid}{_described(psutil.Process(each.pid))}"
    return "it is in use by a process that this user can't see"


def _described(process: psutil.Process) -> str:
    if process == psutil.Process():
        return ", this server, for another listener"
    command = process.cmdline()
    is_server = "serve" in command and any("completion" in Path(part).name for part in command[:3])
    text = shlex.join(command)
    short = text if len(text) <= _MAX_COMMAND else f"{text[:_MAX_COMMAND]}..."
    return f", {'another completion-server' if is_server else 'which is'}: {short}"


def check_tls(settings: ServerSettings) -> None:
    """Check that the TLS files of both listeners can be used.

    Raises:
        ConfigError: a file can't be read, or the certificate and the key don't belong together.

    """
    for key, tls in (("server.tls", settings.tls), ("server.admin_tls", settings.admin_tls)):
        if tls.certificate:
            credentials(tls, key)


def credentials(tls: TlsSettings, key: str) -> grpc.ServerCredentials:
    """Return the credentials of a listener; `key` names its section.

    Raises:
        ConfigError: a file can't be read, or the certificate and the key don't belong together.

    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
        pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
        client_ca = Path(tls.client_ca).read_bytes() if tls.client_ca else None
    except OSError as error:  # ssl's own errors are among them
        msg = f"{key}: its certificate, key or client_ca can't be used: {error}"
        raise ConfigError(msg) from error
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)
