"""The corpus: real source files of the packages that the lock files install, in an order that a seed decides.

The same packages give the same files on every machine. Nothing of them is stored in this repository.
"""

import hashlib
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata, packages_distributions
from pathlib import Path

from loadtest.bench.quality.languages import Language

ROOTS: Mapping[str, Path] = {
    "site-packages": Path(sysconfig.get_path("purelib")),
    "node_modules": Path(__file__).parents[3] / "editors" / "node_modules",
}
_MIN_CHARS, _MAX_CHARS = 1_500, 150_000
_MAX_LINE = 400
_FILES_OF_PACKAGE = 3
"""Most files of one package and language, since a few packages have most of the files."""
_SKIPPED = re.compile(r"\.min\.|_pb2|\.d\.m?ts$|-info/|/(dist|build|bundle|generated|vendor|_vendor|vendored)/")
_GENERATED = re.compile(r"generated|do not edit|sourceMappingURL", re.IGNORECASE)
_HEAD, _TAIL = 1_000, 200


@dataclass(frozen=True)
class Source:
    """A file of the corpus. `path` begins with the name of its root."""

    path: str
    text: str
    digest: str
    """SHA-256 of the file."""
    licence: str


def sources(language: Language, seed: int, roots: Mapping[str, Path] = ROOTS) -> Iterator[Source]:
    """Return the files of a language, in an order that the seed and their paths decide.

    Generated and minified files are left out, and all but the first three files of each package.
    """
    paths = {
        path: root / relative
        for name, root in roots.items()
        for relative in _files(root)
        if relative.endswith(language.suffixes) and not _SKIPPED.search(path := f"{name}/{relative}")
    }
    taken: Counter[str] = Counter()
    for path in sorted(paths, key=lambda path: hashlib.sha256(f"{seed}:{path}".encode()).digest()):
        package = _package(path)
        if taken[package] == _FILES_OF_PACKAGE:
            continue
        data = paths[path].read_bytes()
        text = data.decode(errors="replace")
        if is_written_by_hand(text):
            taken[package] += 1
            yield Source(path, text, hashlib.sha256(data).hexdigest(), _licence(paths[path], path))


def is_written_by_hand(text: str) -> bool:
    """Return whether a file has the size and the lines of a file that people edit."""
    if not _MIN_CHARS <= len(text) <= _MAX_CHARS or "\r" in text or "\ufffd" in text:
        return False
    return max(map(len, text.split("\n"))) <= _MAX_LINE and not _GENERATED.search(text[:_HEAD] + text[-_TAIL:])


@cache
def _files(root: Path) -> tuple[str, ...]:
    return tuple(each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file())


def _package(path: str) -> str:
    """Return the root and the package of a path: "node_modules/@grpc/grpc-js" of one that begins so."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[1].startswith("@") else 2])


def _licence(file: Path, path: str) -> str:
    """Return the licence that the file's package names; "" if it names none."""
    package = _package(path).split("/", 1)[1]
    if path.startswith("node_modules/"):
        folder = next(each for each in file.parents if each.as_posix().endswith(f"/{package}"))
        return str(json.loads((folder / "package.json").read_text(encoding="utf-8")).get("license", ""))
    names = _distributions().get(package.removesuffix(".py"), [])
    if not names:
        return ""
    about = metadata(names[0])
    named = next((about[key] for key in ("License-Expression", "License") if key in about), "")
    classifiers = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each.startswith("License")]
    return named.split("\n", 1)[0] if named else "; ".join(classifiers)


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()
