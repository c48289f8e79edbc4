"""What the corpus is made of."""

from dataclasses import dataclass
from enum import Enum


class Side(Enum):
    """The two sides of the split: whole repositories are on one of them."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Document:
    """One file. `repository` names what is split as one: a repository, a package, a folder of one's own."""

    repository: str
    path: str
    licence: str
    """An SPDX expression where the source gives something that can be read as one; else its own words."""
    text: str
    version: str = "-"


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What one repository put into the corpus."""

    name: str
    version: str
    licence: str
    side: str
    num_files: int
    num_bytes: int
