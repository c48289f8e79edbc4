"""Settings of the usage records and of the audit log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The `[records]` section. Each file belongs to one server alone."""

    usage_file: str = ""
    """A file for usage records: one JSON line for each ended request. Users' pseudonyms are made with the secret of
    `redis.secret_file`. Unset: none are written."""
    audit_file: str = ""
    """A file for the audit log: one JSON line for each request, session, report, change by an operator and refused
    authentication. Unset: none is written."""

    def __post_init__(self) -> None:
        """Check that the files differ."""
        if self.usage_file and self.usage_file == self.audit_file:
            msg = f"audit_file: must be another file than usage_file, got {self.audit_file}"
            raise ValueError(msg)
