"""Errors of a server as sentences with a remedy for the user."""

import socket
import ssl
from collections.abc import Callable

import grpc

from completion_client import Endpoint, ServiceError

START_HINT = "Start one with: completion-server serve --config FILE"

_MAX_CAUSE_CHARS = 120
_CHECK_S = 3.0
_OPENSSL_HOST_MISMATCH, _OPENSSL_IP_MISMATCH = 62, 64
_MS_PER_S = 1000


def explain(error: ServiceError, address: str, *, reached: bool = True) -> str:
    """Return a sentence with the error and its remedy; `reached` says whether there was a connection at all."""
    if not reached:
        return f"No server answers at {address} ({_last_cause(error.message)}). {START_HINT}; or name another address."
    template = _TEMPLATES.get(error.status)
    text = template(error, address) if template else _failed(error, address)
    return text + (f" Ask again in {_duration(error.retry_after_ms)}." if error.retry_after_ms is not None else "")


def explain_tls(endpoint: Endpoint) -> str:
    """Return why TLS may be the reason that there is no connection, "" if it is not; asks the server again.

    gRPC reports only "Socket closed" or a handshake that failed, so this makes a handshake of its own.
    """
    host, _, port = endpoint.address.rpartition(":")
    if endpoint.address.startswith("unix:") or not port.isdecimal():
        return ""
    address = (host.strip("[]"), int(port))
    if endpoint.ca is None and endpoint.certificate is None:
        uses_tls = _refusal(address, _context(None, verifies=False)) == ""
        hint = (
            f"The server at {endpoint.address} encrypts its connections (TLS): give the certificate of its authority "
        )
        return hint + "with --tls-ca FILE." if uses_tls else ""
    if _refusal(address, _context(None, verifies=False)):
        return _explain_plaintext(endpoint, address)
    try:
        context = _context(endpoint, verifies=True)
    except (OSError, ssl.SSLError) as error:
        return f"--tls-ca, --tls-cert or --tls-key can't be used: {error}."
    refusal = _refusal(address, context)
    return refusal and f"The server at {endpoint.address} can't be used: {refusal}"


def _explain_plaintext(endpoint: Endpoint, address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, _CHECK_S).close()
    except OSError:
        return ""
    return f"The server at {endpoint.address} does not use TLS: leave out --tls-ca, --tls-cert and --tls-key."


def _context(endpoint: Endpoint | None, *, verifies: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=endpoint.ca if endpoint else None)
    context.check_hostname = verifies
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: a file may hold the server's own certificate
    context.set_alpn_protocols(["h2"])
    if endpoint and endpoint.certificate:
        context.load_cert_chain(endpoint.certificate, endpoint.key)
    return context


def _refusal(address: tuple[str, int], context: ssl.SSLContext) -> str:
    """Return why a TLS handshake with a server fails, "" if it succeeds."""
    try:
        with (
            socket.create_connection(address, _CHECK_S) as connection,
            context.wrap_socket(connection, server_hostname=address[0]) as secured,
        ):
            return _missing_certificate(secured)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_OPENSSL_HOST_MISMATCH, _OPENSSL_IP_MISMATCH):
            return (
                f"its certificate is not for {address[0]} ({error.verify_message.rstrip('.')}). "
                "Use a name that the certificate has, or a certificate for this name."
            )
        return (
            f"its certificate is not signed by an authority in the file of --tls-ca ({error.verify_message}). "
            "Give the file of the authority that signed it, or of the certificate itself."
        )
    except (OSError, ssl.SSLError) as error:
        return f"the TLS handshake failed: {error}."


def _missing_certificate(secured: ssl.SSLSocket) -> str:
    """Return what a server says against a client without a certificate: in TLS 1.3 that comes after the handshake."""
    if not secured.context.verify_mode:
        return ""
    secured.settimeout(_CHECK_S)
    try:
        is_admitted = bool(secured.recv(1))  # a gRPC server begins with its settings
    except TimeoutError:
        is_admitted = True
    except OSError:  # ssl's own errors are among them
        is_admitted = False
    if is_admitted:
        return ""
    return "it wants the certificate of a client that it knows: use --tls-cert and --tls-key."


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / _MS_PER_S
    return f"{seconds:.0f} s" if seconds >= 1 else f"{milliseconds} ms"


def _failed(error: ServiceError, address: str) -> str:
    return f"The server at {address} failed: {error.message} ({error.status.name})."


def _invalid(error: ServiceError, address: str) -> str:
    faults = "; ".join(f"{each.field}: {each.description}" for each in error.violations) or error.message
    return f"The server at {address} refused the request: {faults}."


def _last_cause(details: str) -> str:
    """Return the last cause in gRPC's long message about a failed connection."""
    return details.rstrip(".; )").rsplit(": ", 1)[-1][:_MAX_CAUSE_CHARS]


_TEMPLATES: dict[grpc.StatusCode, Callable[[ServiceError, str], str]] = {
    grpc.StatusCode.UNAVAILABLE: lambda error, address: f"The server at {address} can't answer now: {error.message}.",
    grpc.StatusCode.INVALID_ARGUMENT: _invalid,
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda error, address: (
        f"The server at {address} did not finish in time; allow it more with --timeout-ms."
    ),
    grpc.StatusCode.UNAUTHENTICATED: lambda error, address: (
        f"The server at {address} wants to know its user: {error.message}. Name one with --user."
    ),
    grpc.StatusCode.PERMISSION_DENIED: lambda error, address: (
        f"The server at {address} does not allow this with your certificate: {error.message}."
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: lambda error, address: (
        f"The server at {address} is overloaded: {error.message}."
    ),
    grpc.StatusCode.UNIMPLEMENTED: lambda error, address: (
        f"The listener at {address} does not serve this: {error.message}. Is it the right port?"
    ),
    grpc.StatusCode.CANCELLED: lambda error, address: f"The call to {address} was cancelled: {error.message}.",
}
