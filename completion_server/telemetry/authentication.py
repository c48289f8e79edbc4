"""Metrics of authentication."""

from prometheus_client import CollectorRegistry, Counter

from completion_server.auth.refusal import Result
from completion_server.core.events import CredentialsChecked, CredentialSourceFailed

_KINDS = ("key", "token", "certificate")
_SOURCES = ("auth.keys_file", "auth.jwks_file", "auth.issuer", "auth.crl_file")


class AuthenticationMetrics:
    """Counts checks of credentials, and failures of what they are checked against."""

    def __init__(self, registry: CollectorRegistry, *, is_on: bool) -> None:
        """Register the metrics; their series exist from the start if authentication is on."""
        checked = "Checks of credentials, by kind and result."
        self._checked = Counter("completion_authentications", checked, ("kind", "result"), registry=registry)
        failed = "Times that keys or revocations could not be read or fetched again, by configuration key."
        self._failed = Counter("completion_credential_source_failures", failed, ("source",), registry=registry)
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

    def failed(self, event: CredentialSourceFailed) -> None:
        """Count a failure."""
        self._failed.labels(event.source).inc()

    def _series(self, kind: str, result: str) -> Counter:
        series = self._checked_of.get((kind, result))
        if series is None:
            series = self._checked_of[kind, result] = self._checked.labels(kind, result)
        return series
