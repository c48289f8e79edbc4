"""Which repositories are held out: those that are named, and a share chosen by a hash of the name.

The hash makes the choice the same on every machine, and leaves it as it is when other repositories are added.
"""

import hashlib
from collections.abc import Collection
from pathlib import PurePosixPath

from draft_model.corpus.documents import Side

HELD_OUT_PERCENT = 2.0


def side_of(repository: str, percent: float = HELD_OUT_PERCENT, named: Collection[str] = ()) -> Side:
    """The side of a repository, by its name alone, upper and lower case alike."""
    name = repository.lower()
    if name in {one.lower() for one in named}:
        return Side.HELD_OUT
    digest = hashlib.sha256(name.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return Side.HELD_OUT if share * 100 < percent else Side.TRAIN


def part_of(repository: str, path: str, num_parts: int) -> int:
    """The part of the corpus that a file goes to, with its folder; each part is a sample of the whole."""
    folder = PurePosixPath(path).parent
    digest = hashlib.blake2b(f"{repository}\n{folder}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_parts
