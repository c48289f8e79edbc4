"""The language of a document, and what the text rules must know of its syntax.

The ids, file endings and interpreters of each language are in `languages.tsv`, which `editors/languages/make_table.mjs`
writes from the data of GitHub's linguist (MIT, see `languages.LICENSE`): a row has a language's name, its syntax, the
ids that editors call it, its file endings, its file names and its interpreters. A language that is not known, or whose
syntax is not described here, has the syntax of `UNKNOWN`, which fits most languages.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_TABLE = Path(__file__).with_suffix(".tsv")
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?([^\s/]+)(?:[ \t]+(?:-\S+|\w+=\S*))*(?:[ \t]+(?:\S*/)?([^\s/]+))?")
_VERSION = re.compile(r"[\d.]+$")
_UNNAMED = frozenset({"", "plaintext", "text"})
"""Ids of documents whose language the editor does not know."""
_WORDS = (
    r"(?:end\w*|fi|done|esac|until|next|loop|wend)\b(?!\s*(?:[.,:\[(]|[-+*/|]?=))"
    r"|end(?:if|for\w*|while|function|macro|block)\s*\("
)
_MARKUP = r"<%-?\s*end|\{/|\{%-?\s*end|\{\{[-~]?\s*(?:end|/)|@end"

_BEFORE_NO_CODE = {"/*": r"(?!.*\*/\s*\S)", "<!--": r"(?!.*-->\s*\S)"}
"""Patterns behind the marks of comments that may end in a line."""


@dataclass(frozen=True)
class Syntax:
    """What the text rules know of a language's syntax."""

    quotes: str = "\"'`"
    """Characters that begin a string and end it."""
    has_characters: bool = False
    """Whether an apostrophe quotes one character, as in `'('`, and is else part of a name."""
    has_joined_strings: bool = False
    """Whether a string may begin right after a word, as in `cut -d' '`."""
    multiline_quotes: tuple[str, ...] = ('"""', "'''")
    """Quotes of strings that may have several lines."""
    comments: tuple[str, ...] = ("# ", "//", "/*", "* ", "-- ")
    """What a line that is a comment begins with."""
    closing_words: str = ""
    """Pattern of the beginning of a line that closes a block, besides brackets and tags."""
    needs_plain_opener: bool = False
    """Whether such a line closes only a block whose first line ends with no bracket and no colon."""

    @cached_property
    def closing(self) -> re.Pattern[str]:
        """Pattern of the beginning of a line that closes a block."""
        words = f"|{self.closing_words}" if self.closing_words else ""
        return re.compile(rf"[)\]}}]|</|/?>(?!\s)|/?>$|(?i:(?!){words})")

    @cached_property
    def comment(self) -> re.Pattern[str]:
        """Pattern of the beginning of a line that is a comment."""
        return re.compile("|".join(map(re.escape, self.comments)) or r"(?!)")

    @cached_property
    def comment_behind_code(self) -> re.Pattern[str]:
        """Pattern of the beginning of a comment behind code and before none; also of a part of it at the text's end."""
        marks = [mark for mark in self.comments if mark != "* " and mark not in self.quotes and not mark[0].isalnum()]
        parts = {mark[:num] for mark in marks for num in range(1, len(mark))}
        patterns = [re.escape(mark) + _BEFORE_NO_CODE.get(mark, "") for mark in marks]
        patterns += [re.escape(part) + "$" for part in sorted(parts)]
        return re.compile(rf"\s(?:{'|'.join(patterns) or '(?!)'})")


@dataclass(frozen=True)
class Language:
    """A language by linguist's name, "" if it is not known."""

    name: str
    syntax: Syntax


_PLAIN = Syntax()
_SCRIPT = replace(_PLAIN, multiline_quotes=("`", '"""'), comments=("//", "/*", "* "))
_C = replace(_SCRIPT, multiline_quotes=('"""',))
_HASH = replace(_PLAIN, comments=("#",))
_RUBY = replace(_HASH, closing_words=r"end\b")
_ONLY_DOUBLE = replace(_PLAIN, quotes='"', multiline_quotes=('"""',))
_DASH = replace(_PLAIN, comments=("--",), multiline_quotes=(), closing_words=r"end\b")
_SYNTAXES = {
    "": replace(_PLAIN, multiline_quotes=("`", '"""', "'''"), closing_words=rf"{_WORDS}|{_MARKUP}",
                needs_plain_opener=True),
    "c": _C,
    "script": _SCRIPT,
    "json": replace(_C, quotes='"'),
    "css": _C,
    "rust": replace(_C, quotes='"', has_characters=True),
    "ml": replace(_ONLY_DOUBLE, has_characters=True, comments=("--", "{-", "(*", "//"),
                  closing_words=r"(?:end|done)\b"),
    "lisp": replace(_ONLY_DOUBLE, comments=(";", "#|")),
    "python": _HASH,
    "hash": _HASH,
    "powershell": replace(_HASH, quotes="\"'", multiline_quotes=()),
    "ruby": _RUBY,
    "lua": replace(_DASH, closing_words=r"(?:end|until)\b"),
    "shell": replace(_HASH, has_joined_strings=True, multiline_quotes=(),
                     closing_words=r"(?:fi|done|esac|endif|endsw)\b|end$"),
    "fish": replace(_RUBY, has_joined_strings=True),
    "vim": replace(_RUBY, comments=('"', "#"), multiline_quotes=(), closing_words=r"end\w*\b|aug\w*\s+end\b"),
    "make": replace(_RUBY, has_joined_strings=True, closing_words=r"(?:end\w*|fi|done|esac)\b"),
    "basic": replace(_ONLY_DOUBLE, comments=("'", "Rem "), multiline_quotes=(),
                     closing_words=r"(?:end\w*|next|loop|wend)\b"),
    "pascal": replace(_PLAIN, quotes="'", comments=("//", "{", "(*"), multiline_quotes=(),
                      closing_words=r"(?:end|until)\b"),
    "sql": replace(_DASH, comments=("--", "/*", "* ")),
    "ada": replace(_DASH, quotes='"', has_characters=True),
    "verilog": replace(_C, quotes='"', multiline_quotes=(), closing_words=r"(?:end\w*|join\w*)\b|`end"),
    "fortran": replace(_PLAIN, comments=("!", "C "), multiline_quotes=(), closing_words=r"end\w*\b"),
    "matlab": replace(_PLAIN, comments=("%",), multiline_quotes=(), closing_words=r"end\w*\b"),
    "erlang": replace(_PLAIN, comments=("%",), closing_words=r"end\b"),
    "tex": replace(_PLAIN, quotes="", comments=("%",), multiline_quotes=(), closing_words=r"\\end\b|\\fi\b|\\\]"),
    "markup": replace(_PLAIN, quotes="\"'", comments=("<!--",), multiline_quotes=(), closing_words=_MARKUP),
    "template": replace(_PLAIN, comments=("<!--", "{#", "{{!"), multiline_quotes=(), closing_words=_MARKUP),
    "prose": replace(_PLAIN, quotes='"`', comments=(), multiline_quotes=("```",), closing_words=rf"{_WORDS}|{_MARKUP}",
                     needs_plain_opener=True),
    "assembly": replace(_PLAIN, quotes='"', comments=(";", "#", "//"), multiline_quotes=(),
                        closing_words=r"[.%]?end\w*\b"),
}  # fmt: skip
UNKNOWN = Language("", _SYNTAXES[""])


def language_of(language_id: str, path: str, text_head: str) -> Language:
    """Return the language of a document.

    The editor's id of it decides, then the first line if it names an interpreter, then the document's path or URI.
    """
    key = language_id.strip().lower()
    found = None if key in _UNNAMED else _TABLES.by_id.get(key)
    return found or _of_interpreter(text_head) or _of_path(path) or UNKNOWN


def _of_path(path: str) -> Language | None:
    name = unquote(path.rpartition("/")[2].rpartition("\\")[2]).lower()
    found = _TABLES.by_name.get(name)
    at = name.find(".")
    while found is None and at >= 0:
        found = _TABLES.by_ending.get(name[at:])
        at = name.find(".", at + 1)
    return found


def _of_interpreter(text: str) -> Language | None:
    match = _SHEBANG.match(text) if text.startswith("#!") else None
    if match is None:
        return None
    program, argument = match.groups()
    name = argument if program == "env" and argument else program
    return _TABLES.by_interpreter.get(name) or _TABLES.by_interpreter.get(_VERSION.sub("", name))


class _Tables(NamedTuple):
    """Languages by the columns of the table, after their name and syntax."""

    by_id: dict[str, Language]
    by_ending: dict[str, Language]
    by_name: dict[str, Language]
    by_interpreter: dict[str, Language]

    @classmethod
    def read(cls) -> "_Tables":
        tables = cls({}, {}, {}, {})
        for row in _TABLE.read_text(encoding="utf-8").splitlines():
            name, _, columns = row.partition("\t")
            syntax, *keys = columns.split("\t")
            language = Language(name, _SYNTAXES[syntax])
            for table, column in zip(tables, keys, strict=False):
                table.update(dict.fromkeys(column.split(), language))
        return tables


_TABLES = _Tables.read()
