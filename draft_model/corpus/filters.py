"""Decides which files the corpus leaves out, and why. Pure functions of a document."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePosixPath

from draft_model.corpus.cleaning import is_generated, is_table, parse_python, shorten_python, tidy
from draft_model.corpus.documents import Document
from draft_model.corpus.licences import is_permissive

DEFAULT_SUFFIXES = (".py",)
EXCLUDED_PARTS = frozenset(
    {
        "__pycache__", "_pyrepl", "_vendor", "encodings", "ensurepip", "idlelib", "lexers", "lib2to3", "locale",
        "locales", "msilib", "node_modules", "pydoc_data", "site-packages", "stringprep.py", "styles", "test", "tests",
        "testing", "third_party", "turtledemo", "unicode_codes", "unidata", "vendor", "vendored",
    }
)  # fmt: skip
_TEST_NAME = re.compile(r"test_.*|.*_tests?|conftest|.*_pb2(_grpc)?")


class Refusal(Enum):
    """The reason to leave a file out."""

    LICENCE = "licence"
    PATH = "tests, vendored copies and other suffixes"
    SIZE = "size"
    GENERATED = "generated"
    TABLE = "minified or a table"
    UNPARSABLE = "does not parse"
    DUPLICATE = "near copy"


@dataclass(frozen=True, slots=True)
class Rules:
    """The accepted files; sizes in bytes. `is_shortened` removes prose from Python, for the smallest models."""

    suffixes: tuple[str, ...] = DEFAULT_SUFFIXES
    min_bytes: int = 400
    max_bytes: int = 400_000
    is_shortened: bool = False


def judge(document: Document, rules: Rules) -> Document | Refusal:
    """The document in the form for the corpus, or the reason to leave it out. Cheap checks come first."""
    checks: tuple[tuple[Refusal, Callable[[], bool]], ...] = (
        (Refusal.LICENCE, lambda: is_permissive(document.licence)),
        (Refusal.PATH, lambda: is_wanted_path(PurePosixPath(document.path), rules.suffixes)),
        (Refusal.SIZE, lambda: rules.min_bytes <= len(document.text.encode("utf-8", "replace")) <= rules.max_bytes),
    )
    for refusal, is_fine in checks:
        if not is_fine():
            return refusal
    return _judge_text(document, rules)


def is_wanted_path(path: PurePosixPath, suffixes: tuple[str, ...] = DEFAULT_SUFFIXES) -> bool:
    """Whether a path is ordinary code: no tests, generated tables or vendored copies."""
    if path.suffix not in suffixes or EXCLUDED_PARTS.intersection(path.parts):
        return False
    return _TEST_NAME.fullmatch(path.stem) is None


def _judge_text(document: Document, rules: Rules) -> Document | Refusal:
    is_python = document.path.endswith(".py")
    text = document.text.replace("\r\n", "\n").replace("\r", "\n")  # Only some sources translate line ends.
    text = tidy(text) if rules.is_shortened and is_python else text
    if is_generated(text):
        return Refusal.GENERATED
    if is_table(text):
        return Refusal.TABLE
    if is_python:
        tree = parse_python(text)
        if tree is None:
            return Refusal.UNPARSABLE
        text = shorten_python(text, tree) if rules.is_shortened else text
    return replace(document, text=text) if text.strip() else Refusal.SIZE
