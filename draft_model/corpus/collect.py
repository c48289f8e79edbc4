"""Collects a corpus from a stream of documents: filters, removes near copies, splits, writes.

Near copies are found by MinHash and locality-sensitive hashing; the index is in memory, about 3.2 KB a document. A hash
of the name chooses the held-out repositories besides the named ones: the same choice on every machine, also when other
repositories are added.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from datasketch import MinHash, MinHashLSH  # type: ignore[import-untyped]

from draft_model.core import PipelineError, replacing_folder
from draft_model.corpus.filters import Refusal, Rules, judge
from draft_model.corpus.store import MANIFEST, CorpusWriter, Document, Manifest, Side

NUM_PARTS = 4
SIMILARITY = 0.7
"""Least Jaccard similarity of the shingles of near copies."""
NUM_PERMUTATIONS = 64
SHINGLE_WORDS = 5
MIN_WORDS = 12
_WORD = re.compile(r"\w+")
HELD_OUT_PERCENT = 2.0


@dataclass(frozen=True)
class CorpusSettings:
    """The settings of a corpus. Sources that `are_distinct` need no index of near copies."""

    rules: Rules = field(default_factory=Rules)
    held_out_percent: float = HELD_OUT_PERCENT
    held_out: Collection[str] = ()
    num_parts: int = NUM_PARTS
    are_distinct: bool = False


def collect_corpus(documents: Iterable[Document], out: Path, settings: CorpusSettings) -> Manifest:
    """Write the corpus of `documents` to `out`, whole or not at all.

    Raises PipelineError when `out` holds something else than a corpus, one side of the split would be empty, a
    repository to hold out is not among the documents, or the disk refuses.
    """
    refused: Counter[str] = Counter()
    duplicates = NearDuplicates()
    with replacing_folder(out, MANIFEST) as folder:
        writer = CorpusWriter(folder, settings.num_parts)
        for document in documents:
            judged = judge(document, settings.rules)
            if isinstance(judged, Document) and not settings.are_distinct and not duplicates.is_new(judged.text):
                judged = Refusal.DUPLICATE
            if isinstance(judged, Refusal):
                refused[judged.value] += 1
            else:
                writer.add(judged, side_of(judged.repository, settings.held_out_percent, settings.held_out))
        manifest = writer.finish(dict(sorted(refused.items())))
        _check(manifest, settings.held_out)
    return manifest


def _check(manifest: Manifest, held_out: Collection[str]) -> None:
    unknown = {name.lower() for name in held_out} - {source.name.lower() for source in manifest.sources}
    if unknown:
        raise PipelineError(f"to hold out, but nothing usable of it was read: {', '.join(sorted(unknown))}")
    for side in Side:
        if not manifest.num_files(side):
            total = sum(source.num_files for source in manifest.sources)
            left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.num_refused.items())
            raise PipelineError(
                f"the {side} side of the corpus would be empty: {total} usable files, left out: {left_out or 'none'}; "
                "--hold-out NAME holds a repository out"
            )


class NearDuplicates:
    """An index of the texts seen so far."""

    def __init__(self, similarity: float = SIMILARITY) -> None:
        self._index = MinHashLSH(threshold=similarity, num_perm=NUM_PERMUTATIONS)
        self._num_seen = 0

    def is_new(self, text: str) -> bool:
        """Whether no similar text was seen before; a new text is added to the index."""
        words = _WORD.findall(text)
        if len(words) < MIN_WORDS:
            return False
        runs = {" ".join(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1)}
        sketch = MinHash(num_perm=NUM_PERMUTATIONS, hashfunc=crc32)
        sketch.update_batch([run.encode("utf-8", "replace") for run in runs])
        if self._index.query(sketch):
            return False
        self._index.insert(str(self._num_seen), sketch, check_duplication=False)
        self._num_seen += 1
        return True


def side_of(repository: str, percent: float = HELD_OUT_PERCENT, named: Collection[str] = ()) -> Side:
    """The side of a repository, by its name without regard to case."""
    name = repository.lower()
    if name in {one.lower() for one in named}:
        return Side.HELD_OUT
    digest = hashlib.sha256(name.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return Side.HELD_OUT if share * 100 < percent else Side.TRAIN
