"""The entries of docs/runbooks.md."""

import re
from dataclasses import dataclass

from tests.support.models import ROOT


@dataclass(frozen=True)
class Entry:
    """What the runbooks say of an alert."""

    text: str

    @property
    def commands(self) -> list[str]:
        """What to type first, a command a line."""
        found = re.search(r"^\*\*Type\*\*\n\n```sh\n(.*?)\n```$", self.text, re.MULTILINE | re.DOTALL)
        return found[1].split("\n") if found else []


def head() -> str:
    """Return what stands before the entries."""
    return _parts()[0]


def runbooks() -> dict[str, Entry]:
    """Return the entries by their alerts."""
    parts = _parts()
    return {alert: Entry(entry) for alert, entry in zip(parts[1::2], parts[2::2], strict=True)}


def asked() -> list[str]:
    """Return the queries that the entries have somebody type."""
    return [
        query for entry in runbooks().values() for query in re.findall(r"^ask '(.+)'$", entry.text, flags=re.MULTILINE)
    ]


def _parts() -> list[str]:
    text = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
    return re.split(r"^## (Completion\w+)$", text, flags=re.MULTILINE)
