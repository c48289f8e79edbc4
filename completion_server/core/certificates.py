"""The certificate of a listener, which is read again when its files change. No connection is dropped for it."""

import asyncio
import datetime
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from completion_server.core.errors import ConfigError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often the files are looked at. Changed ones are used at the second look, so that all of them are written."""

_Content = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """What a listener shows to its clients, and the authority that it checks theirs against."""

    chain: bytes
    """PEM, the server's own certificate first."""
    key: bytes
    client_ca: bytes | None
    """None if clients need no certificate."""
    context: ssl.SSLContext
    expires_at: float
    """When the first certificate of the chain expires, in Unix seconds."""


class CertificateFiles:
    """The TLS files of one listener. While they can't be used, the certificate from before stays."""

    def __init__(self, section: str, certificate: str, key: str, client_ca: str = "") -> None:
        """Load the files that a section of the configuration names; `client_ca` may be "".

        Raises:
            ConfigError: a file can't be read, or the certificate and the key don't belong together.

        """
        self._section = section
        self._paths = tuple(Path(name) for name in (certificate, key, client_ca) if name)
        self.has_failed = False
        """Whether the files have changed to what can't be used."""
        try:
            self._judged: _Content | str = self._read()
            self.current = self._load(self._judged)
        except (OSError, ValueError) as error:  # ssl's own errors are among them
            msg = f"{section}: its certificate, key or client_ca can't be used: {error}"
            raise ConfigError(msg) from error
        self._seen: _Content | str = self._judged

    def look(self) -> None:
        """Read the files. Use them if they have changed, were the same at the look before, and can be used."""
        try:
            found: _Content | str = self._read()
        except OSError as error:
            found = str(error)
        is_settled, self._seen = found == self._seen, found
        if not is_settled or found == self._judged:
            return
        try:
            if isinstance(found, str):
                raise OSError(found)
            loaded = self._load(found)
            if self._read() != found:
                return  # written meanwhile: what was loaded may be from both
        except (OSError, ValueError) as error:
            self._judged, self.has_failed = found, True
            until = _shown(self.current.expires_at)
            msg = "%s: the new certificate, key or client_ca can't be used; the one until %s stays: %s"
            logger.error(msg, self._section, until, error)
            return
        self._judged, self.has_failed, self.current = found, False, loaded
        logger.info("%s: a new certificate is in use, until %s", self._section, _shown(loaded.expires_at))

    def _read(self) -> _Content:
        return tuple(path.read_bytes() for path in self._paths)

    def _load(self, content: _Content) -> ServerCertificate:
        """Return the certificate of the files, whose content was read before. Raises OSError and ValueError."""
        certificate, key, *authorities = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        for authority in authorities:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority)
        chain = x509.load_pem_x509_certificates(content[0])
        expires_at = min(each.not_valid_after_utc.timestamp() for each in chain)
        return ServerCertificate(content[0], content[1], content[2] if authorities else None, context, expires_at)


def hosts_of(chain: bytes) -> list[str]:
    """Return the hosts, names and IP addresses, that the first certificate of a PEM file is for."""
    first = x509.load_pem_x509_certificates(chain)[0]
    try:
        found = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


async def watch(files: Sequence[CertificateFiles]) -> None:
    """Look at the files again and again, beside the event loop. Ends at once if there are none."""
    while files:
        await asyncio.sleep(LOOK_EVERY_S)
        for each in files:
            await asyncio.to_thread(each.look)


def _shown(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="seconds")
