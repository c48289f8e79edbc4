"""Detects copies and near copies: exact ones by hash, near ones by MinHash and locality-sensitive hashing.

The index is in memory, about 3.2 KB a document; `deduplicate.py` handles corpora that do not fit.
"""

import hashlib
import re
from collections.abc import Sequence
from zlib import crc32

from datasketch import MinHash, MinHashLSH  # type: ignore[import-untyped]

SIMILARITY = 0.7
"""Least Jaccard similarity of the shingles of near copies."""
NUM_PERMUTATIONS = 64
SHINGLE_WORDS = 5
MIN_WORDS = 12
_WORD = re.compile(r"\w+")


class NearDuplicates:
    """An index of the texts seen so far."""

    def __init__(self, similarity: float = SIMILARITY) -> None:
        self._exact: set[bytes] = set()
        self._index = MinHashLSH(threshold=similarity, num_perm=NUM_PERMUTATIONS)
        self._num_seen = 0

    def is_new(self, text: str) -> bool:
        """Whether no similar text was seen before; a new text is added to the index."""
        words = _WORD.findall(text)
        digest = hashlib.blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=16).digest()
        if len(words) < MIN_WORDS or digest in self._exact:
            return False
        sketch = MinHash(num_perm=NUM_PERMUTATIONS, hashfunc=crc32)
        sketch.update_batch(shingles(words))
        if self._index.query(sketch):
            return False
        self._exact.add(digest)
        self._index.insert(str(self._num_seen), sketch, check_duplication=False)
        self._num_seen += 1
        return True


def shingles(words: Sequence[str]) -> list[bytes]:
    """Every run of `SHINGLE_WORDS` words, once."""
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return list({" ".join(words[at : at + SHINGLE_WORDS]).encode("utf-8", "replace") for at in range(last)})
