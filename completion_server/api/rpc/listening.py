"""Checks of the listeners' addresses, made before anything is loaded, and their TLS."""

import contextlib
import errno
import shlex
import socket
from pathlib import Path

import grpc
import psutil

from completion_server.core.addresses import is_unix_socket, split_address
from completion_server.core.certificates import CertificateFiles, ServerCertificate
from completion_server.core.errors import ConfigError
from completion_server.requests.limits.settings import ServerSettings

_ASK = "`completion-server status` asks a running server"
_MAX_COMMAND = 100
_CONNECT_S = 1.0
_ANY = ("0.0.0.0", "::")
_MAPPED = "::ffff:"
"""gRPC listens on an address of IPv4 by a socket of IPv6."""


def check_ports(settings: ServerSettings) -> None:
    """Check that the configured addresses are free, also of each other.

    Raises ConfigError: an address is in use, or does not belong to this machine. The message says what holds it.
    """
    sockets = set[str]()
    with contextlib.ExitStack() as bound:
        for key in ("listen", "admin_listen", "metrics_listen", "http_listen"):
            address = getattr(settings, key)
            try:
                if is_unix_socket(address):
                    _check_socket(address, sockets)
                elif address:
                    host, port = split_address(address)
                    # "::" stands for all addresses of IPv4, too, as in gRPC.
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    new = socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
                    bound.enter_context(new)
            except OSError as error:
                cause = error.strerror or str(error)
                if error.errno == errno.EADDRINUSE:
                    cause = f"{_holder(address)}; {_ASK}"
                msg = f"server.{key}: can't listen on {address}: {cause}"
                raise ConfigError(msg) from error


def _check_socket(address: str, others: set[str]) -> None:
    """Check that no server accepts connections on a Unix socket, and that it is not among `others`, which it joins.

    A file that a server has left is replaced.
    """
    scheme, _, name = address.partition(":")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_S)
        if address in others or client.connect_ex(f"\0{name}" if scheme == "unix-abstract" else name) == 0:
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


def load_certificates(settings: ServerSettings) -> dict[str, CertificateFiles]:
    """Return the TLS files of the listeners "public" and "admin"; a listener without TLS has none.

    Raises ConfigError: a file can't be read, or the certificate and the key don't belong together.
    """
    sections = (("public", "server.tls", settings.tls), ("admin", "server.admin_tls", settings.admin_tls))
    return {
        name: CertificateFiles(section, tls.certificate, tls.key, tls.client_ca)
        for name, section, tls in sections
        if tls.certificate
    }


def credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Return the credentials of a listener. Each new connection gets the certificate that is in use by then."""

    def configuration(certificate: ServerCertificate) -> grpc.ServerCertificateConfiguration:
        pair = certificate.key, certificate.chain
        return grpc.ssl_server_certificate_configuration([pair], certificate.client_ca)

    used = files.current

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Return what new connections use from now on, None if nothing has changed. Called in gRPC's threads."""
        nonlocal used
        if files.current is used:
            return None
        used = files.current
        return configuration(used)

    return grpc.dynamic_ssl_server_credentials(
        configuration(used),
        changed,  # type: ignore[arg-type]  # gRPC takes None, its types do not say so
        require_client_authentication=used.client_ca is not None,
    )
