"""Chooses the held-out repositories: the named ones, and a share by a hash of the name.

The hash gives the same choice on every machine, also when other repositories are added.
"""

import hashlib
from collections.abc import Collection
from pathlib import PurePosixPath

from draft_model.corpus.documents import Side

HELD_OUT_PERCENT = 2.0


def side_of(repository: str, percent: float = HELD_OUT_PERCENT, named: Collection[str] = ()) -> Side:
    """The side of a repository, by its name without regard to case."""
    name = repository.lower()
    if name in {one.lower() for one in named}:
        return Side.HELD_OUT
    digest = hashlib.sha256(name.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return Side.HELD_OUT if share * 100 < percent else Side.TRAIN


def part_of(repository: str, path: str, num_parts: int) -> int:
    """The part of the corpus for a file and its whole folder; each part is a sample of the corpus."""
    folder = PurePosixPath(path).parent
    digest = hashlib.blake2b(f"{repository}\n{folder}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_parts
