"""Settings of the usage records and of the audit log."""

from dataclasses import dataclass
from typing import Annotated

from completion_server.core.checks import Between, require_bounds


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The `[records]` section. Each file belongs to one server alone."""

    usage_file: str = ""
    """A file for usage records: one JSON line for each ended request. Unset: none are written."""
    pseudonym_secret_file: str = ""
    """A file with a secret of at least 32 bytes, from which users' pseudonyms in usage records are made. Unset: that of
    `redis.secret_file`."""
    audit_file: str = ""
    """A file for the audit log: one JSON line for each request, session, report, change by an operator and refused
    authentication, in a hash chain. Unset: none is written."""
    audit_secret_file: str = ""
    """A file with a secret of at least 32 bytes, with which the audit log is sealed: without it nobody can make a chain
    that is valid. Unset: a plain hash chain, which shows changes only to those who have kept a later hash."""
    max_file_mb: Annotated[float, Between(1, 1_000_000)] = 64.0
    """A file of about this many megabytes (10**6 bytes) is closed; its name gets a number, which rises."""
    max_files: Annotated[int, Between(0, 1_000_000)] = 100
    """Closed files that are kept, the oldest go first; collect usage records before. 0 keeps all."""

    def __post_init__(self) -> None:
        """Check the bounds, and that the files differ."""
        require_bounds(self)
        if self.usage_file and self.usage_file == self.audit_file:
            msg = f"audit_file: must be another file than usage_file, got {self.audit_file}"
            raise ValueError(msg)
