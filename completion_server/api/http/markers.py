"""Takes a raw prompt with fill-in-the-middle markers apart. Pure.

Plugins that build the prompt themselves use the format of the model that they expect, which need not be the served one.
The parts go into a request like any other, and the server renders them for its own model.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from completion_server.core.request import Snippet
from completion_server.text.prompt.templates import FAMILIES, PathAt

_METASPACE = "▁"
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>", "<|reponame|>")
"""Open the name of a repository, up to the end of the line or to the next marker."""
_BEGINS = ("<s>", "<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<|endoftext|>", "<|im_start|>")
"""Tokens with which some plugins begin every prompt."""
_IGNORED = re.compile("|".join([*map(re.escape, _BEGINS), *(f"{re.escape(each)}[^\\n<]*\\n?" for each in _REPOSITORY)]))


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a raw prompt."""

    prefix: str
    suffix: str = ""
    document_uri: str = ""
    """The path of the file being edited, if the prompt has it."""
    snippets: tuple[Snippet, ...] = ()


@dataclass(frozen=True, slots=True)
class _Markers:
    """The markers that one or more families share, as they stand in a prompt's text."""

    prefix: str
    suffix: str
    middle: str
    files: tuple[str, ...]
    """Open a file of the context."""
    has_path_inside: bool
    """Whether the first line behind the prefix marker is a path if a file marker stands right before it."""
    text_header: str
    """Opens a file inside the prefix."""
    is_spaced: bool
    """Whether one blank on the inner side of each marker belongs to the marker."""


def take_apart(prompt: str) -> Parts:
    """Return the parts of a raw prompt. Without markers of a known family all of it is left of the cursor."""
    found = min(_found(prompt), default=None, key=lambda each: each[0])
    if found is None:
        return Parts(prompt)
    _at, markers = found
    split = _split_suffix_first(prompt, markers) or _split_prefix_first(prompt, markers)
    assert split is not None  # `_found` requires the markers in one of the two orders
    header, before, after, typed = split
    if markers.is_spaced:
        before, after = before.removeprefix(" ").removesuffix(" "), after.removesuffix(" ")
    return _with_files(header, Parts(before + typed, after), markers)


def without_markers(stops: tuple[str, ...]) -> tuple[str, ...]:
    """Return stop strings without special tokens, which the server never sends as text."""
    return tuple(stop for stop in stops if stop.strip() not in _special_tokens())


def _found(prompt: str) -> Iterator[tuple[int, _Markers]]:
    """Yield the markers that a prompt has, with the place of the first of them."""
    for markers in _known():
        prefix_at, suffix_at = prompt.find(markers.prefix), prompt.find(markers.suffix)
        if min(prefix_at, suffix_at) < 0:
            continue
        if markers.middle:
            is_prompt = suffix_at < prefix_at or markers.middle in prompt[suffix_at:]
        else:  # code may well hold the two words, so they count only at the beginning
            is_prompt = suffix_at < prefix_at and not _without_tokens(prompt[:suffix_at]).strip()
        if is_prompt:
            yield min(prefix_at, suffix_at), markers


def _split_prefix_first(prompt: str, markers: _Markers) -> tuple[str, str, str, str] | None:
    """Return header, before, after and typed text of a prompt in the order before, after, middle marker."""
    header, has_prefix, rest = prompt.partition(markers.prefix)
    before, has_suffix, rest = rest.partition(markers.suffix)
    after, has_middle, typed = rest.rpartition(markers.middle)
    return (header, before, after, typed) if has_prefix and has_suffix and has_middle else None


def _split_suffix_first(prompt: str, markers: _Markers) -> tuple[str, str, str, str] | None:
    """Return header, before, after and typed text of a prompt in the order after, before, perhaps a middle marker."""
    header, has_suffix, rest = prompt.partition(markers.suffix)
    after, has_prefix, before = rest.partition(markers.prefix)
    if not (has_suffix and has_prefix) or markers.prefix in header:
        return None
    typed = ""
    if markers.middle:
        before, _, typed = before.partition(markers.middle)
    return header, before, after, typed


def _with_files(header: str, parts: Parts, markers: _Markers) -> Parts:
    """Add the files and the path that stand before the markers, or at the beginning of the prefix."""
    is_path_first = markers.has_path_inside and header.rstrip("\n").endswith(markers.files)
    files = list(_files(header, markers.files))
    if is_path_first:
        path, _, prefix = parts.prefix.partition("\n")
        parts = replace(parts, prefix=prefix, document_uri=path.strip())
    elif files and files[-1].uri and not files[-1].text.strip():
        parts = replace(parts, document_uri=files.pop().uri)
    if markers.text_header and parts.prefix.startswith(markers.text_header):
        *others, current = _files(parts.prefix, (markers.text_header,))
        files += others
        parts = replace(parts, prefix=current.text, document_uri=current.uri)
    return replace(parts, snippets=tuple(each for each in files if each.text.strip()))


def _files(text: str, openers: tuple[str, ...]) -> Iterator[Snippet]:
    """Yield the files of a text in which each begins with a marker and its path. Text before the first has no path."""
    text = _without_tokens(text)
    first, *files = re.split("|".join(map(re.escape, openers)), text) if openers else [text]
    if first.strip():
        yield Snippet("", first)
    for file in files:
        path, _, content = file.partition("\n")
        yield Snippet(path.strip(), content)


def _without_tokens(text: str) -> str:
    """Return a text without the tokens that begin a prompt, and without the name of its repository."""
    return _IGNORED.sub("", text)


@cache
def _known() -> tuple[_Markers, ...]:
    """Return the markers of the known families, each once."""
    found: dict[tuple[str, str, str], _Markers] = {}
    for family in FAMILIES:
        is_spaced = family.prefix.startswith(_METASPACE)
        prefix, suffix, middle = (each.lstrip(_METASPACE) for each in (family.prefix, family.suffix, family.middle))
        header = family.text_header.partition("{")[0]
        known = found.get((prefix, suffix, middle))
        files = (*(known.files if known else ()), *((family.file,) if family.file else ()))
        found[prefix, suffix, middle] = _Markers(
            prefix,
            suffix,
            middle,
            tuple(dict.fromkeys(files)),
            has_path_inside=family.path_at is PathAt.INSIDE or (known is not None and known.has_path_inside),
            text_header=header,
            is_spaced=is_spaced,
        )
    return tuple(found.values())


@cache
def _special_tokens() -> frozenset[str]:
    """Return the special tokens of all families, as they stand in text."""
    tokens = {token for family in FAMILIES for token in (*family.markers, *family.ends, *family.needs)}
    return frozenset(token.lstrip(_METASPACE) for token in tokens) | {*_BEGINS, *_REPOSITORY, "</s>", "<|im_end|>"}
