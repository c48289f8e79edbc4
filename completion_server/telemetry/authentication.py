"""Metrics of authentication."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from completion_server.auth.claims import Result
from completion_server.core.events import CredentialsChecked, CredentialSourceRead

_KINDS = ("key", "token", "certificate")
_SOURCES = ("auth.keys_file", "auth.jwks_file", "auth.issuer", "auth.crl_file")


class AuthenticationMetrics:
    """Counts checks of credentials, and shows whether what they are checked against can be read."""

    def __init__(self, registry: CollectorRegistry, *, is_on: bool) -> None:
        """Register the metrics; their series exist from the start if authentication is on."""
        checked = "Checks of credentials, by kind and result."
        self._checked = Counter("completion_authentications", checked, ("kind", "result"), registry=registry)
        failed = "1 while keys or revocations can't be read or fetched, or are out of date, by configuration key."
        self._failed = Gauge("completion_credential_source_failed", failed, ("source",), registry=registry)
        self._checked_of: dict[tuple[str, str], Counter] = {}
        if is_on:
            for kind in _KINDS:
                for result in Result:
                    self._series(kind, result.value)
            self._series("none", Result.MISSING.value)
            for source in _SOURCES:
                self._failed.labels(source)

    def checked(self, event: CredentialsChecked) -> None:
        """Count a check."""
        self._series(event.kind, event.result).inc()

    def source_read(self, event: CredentialSourceRead) -> None:
        """Note whether a source can be used."""
        self._failed.labels(event.source).set(event.has_failed)

    def _series(self, kind: str, result: str) -> Counter:
        series = self._checked_of.get((kind, result))
        if series is None:
            series = self._checked_of[kind, result] = self._checked.labels(kind, result)
        return series
