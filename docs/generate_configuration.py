"""Writes the lists of configuration.md: each key with its default, the values that it takes and what it does.

`make docs` runs it. What stands above the marker is written by hand and kept.
"""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from completion_server.config import Config
from completion_server.core.checks import bounds_of

PAGE = Path(__file__).with_name("configuration.md")
MARKER = "<!-- From here on `make docs` writes this page. -->\n"


def generate(page: str) -> str:
    """Return the page with its lists written anew."""
    intro, marker, _ = page.partition(MARKER)
    if not marker:
        msg = f"the page lacks the line {MARKER.strip()}"
        raise ValueError(msg)
    return intro + marker + "".join(_lists(Config(), ""))


def _lists(section: Any, prefix: str) -> Iterator[str]:  # noqa: ANN401 - any dataclass
    """Yield a section's own list, then those of the sections in it."""
    texts, allowed = _texts(type(section)), _allowed(type(section))
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    rows = [
        f"- `{name}{_shown(value)}`{allowed.get(name, '')}: {texts[name]}\n"
        for name, value in values.items()
        if not dataclasses.is_dataclass(value)
    ]
    if rows:
        yield f"\n## `[{prefix.removesuffix('.')}]`\n\n{''.join(rows)}"
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            yield from _lists(value, f"{prefix}{name}.")


def _texts(section: type) -> dict[str, str]:
    """Return the text below each attribute of a class, on one line."""
    tree = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for attribute, text in zip(tree.body, tree.body[1:], strict=False):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                texts[name] = " ".join(words.split())
    return texts


def _allowed(section: type) -> dict[str, str]:
    """Return the range or the choices of each key that has such, in brackets."""
    found = {name: f" ({bounds})" for name, bounds in bounds_of(section).items()}
    for name, hint in get_type_hints(section).items():
        if get_origin(hint) is Literal:
            found[name] = " (" + ", ".join(_toml(choice) for choice in get_args(hint)) + ")"
    return found


def _shown(value: Any) -> str:  # noqa: ANN401
    """Return a default as a TOML file sets it, nothing for a key that is not set."""
    return "" if value is None else f" = {_toml(value)}"


def _toml(value: Any) -> str:  # noqa: ANN401
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case int() | float():
            return str(value)
        case dict() if not value:
            return "{}"
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
    msg = f"no way to show {value!r}"
    raise TypeError(msg)


def main() -> None:
    """Write the page, and say whether it changed."""
    old = PAGE.read_text(encoding="utf-8")
    new = generate(old)
    PAGE.write_text(new, encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {'as it was' if new == old else 'written'}\n")


if __name__ == "__main__":
    main()
