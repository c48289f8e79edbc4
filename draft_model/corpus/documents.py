"""The documents of a corpus, and the summary of a source."""

from dataclasses import dataclass
from enum import Enum


class Side(Enum):
    """The two sides of the split; each repository is on one side."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Document:
    """One file. `repository` names the unit of the split: a repository, a package, or a user's folder."""

    repository: str
    path: str
    licence: str
    """An SPDX expression, or the source's own words if they can't be read as one."""
    text: str
    version: str = "-"


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """The part of the corpus that one repository contributed."""

    name: str
    version: str
    licence: str
    side: str
    num_files: int
    num_bytes: int
