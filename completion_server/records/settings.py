"""Settings of the usage records and of the audit log."""

from dataclasses import dataclass
from typing import Annotated

from completion_server.core.checks import Between, require_bounds


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The `[records]` section. Each file belongs to one server alone."""

    usage_file: str = ""
    """A file for usage records: one JSON line for each ended request. Users' pseudonyms are made with the secret of
    `redis.secret_file`. Unset: none are written."""
    audit_file: str = ""
    """A file for the audit log: one JSON line for each request, session, report, change by an operator and refused
    authentication. Unset: none is written."""
    max_file_mb: Annotated[float, Between(1, 1_000_000)] = 64.0
    """A file of about this many megabytes (10**6 bytes) is closed, and gets the suffix .1; older ones get the next."""
    max_files: Annotated[int, Between(1, 10_000)] = 100
    """Closed files that are kept, the oldest go first; collect usage records before."""

    def __post_init__(self) -> None:
        """Check the bounds, and that the files differ."""
        require_bounds(self)
        if self.usage_file and self.usage_file == self.audit_file:
            msg = f"audit_file: must be another file than usage_file, got {self.audit_file}"
            raise ValueError(msg)
