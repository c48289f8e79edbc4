"""Finds out why there is no connection with TLS, for commands with the options --tls-ca, --tls-cert and --tls-key."""

import socket
import ssl

from completion_client.endpoint import Endpoint

_CHECK_S = 3.0
_OPENSSL_HOST_MISMATCH, _OPENSSL_IP_MISMATCH = 62, 64


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
