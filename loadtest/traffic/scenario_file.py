"""Reads scenario files: TOML, overrides, and messages for invalid keys. Knows no key itself."""

import difflib
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

PACKAGED = Path(__file__).parent / "scenarios"
"""Folder of the packaged scenarios."""

_PATHS = (("documents", "source"), ("recorded", "file"))
_NOT_PATHS = ("stdlib", "")


class ScenarioError(Exception):
    """A scenario is not valid; the message names the keys, the allowed values and the given ones."""


def packaged_names() -> list[str]:
    """Return the names of the packaged scenarios."""
    return sorted(path.stem for path in PACKAGED.glob("*.toml"))


def read_tree(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """Return a scenario's name and its parsed file; paths in a file are relative to its folder.

    Raises:
        ScenarioError: there is no such scenario, or the file is not TOML.

    """
    path = PACKAGED / f"{name_or_path}.toml"
    if name_or_path not in packaged_names():
        path = Path(name_or_path)
        if not path.is_file():
            msg = f"scenario {name_or_path!r}: no such file, and no packaged scenario; {_hint(name_or_path)}"
            raise ScenarioError(msg)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: can't be read: {error}"
        raise ScenarioError(msg) from error
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: not valid TOML: {error}"
        raise ScenarioError(msg) from error
    for section, key in _PATHS:
        found = tree.get(section)
        if isinstance(found, dict) and isinstance(found.get(key), str) and found[key] not in _NOT_PATHS:
            found[key] = str(path.parent / found[key])
    return path.stem, tree


def put(tree: dict[str, Any], override: str) -> None:
    """Apply the override `section.key=value`; a value that is not TOML is text.

    Raises:
        ScenarioError: the override has another form.

    """
    name, equals, text = override.partition("=")
    *sections, last = name.strip().split(".")
    if not equals or not last:
        msg = f"{override!r}: expected SECTION.KEY=VALUE"
        raise ScenarioError(msg)
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            msg = f"{override!r}: {section} is not a section"
            raise ScenarioError(msg)
    try:
        tree[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        tree[last] = text


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return a line for each error: the key, the allowed values and the given one, or the nearest known key."""
    return "\n".join(_lines(error, model))


def _lines(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    for fault in error.errors():
        *sections, last = fault["loc"] or ("",)
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            known = list(_section(model, sections).model_fields)
            near = difflib.get_close_matches(str(last), known, n=1)
            before = key.removesuffix(str(last))
            hint = f"did you mean {before}{near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
            yield f"{key}: unknown key; {hint}"
        elif fault["type"] == "value_error":  # from a section's own check, which names the key
            yield f"{key}{'.' if key else ''}{fault['ctx']['error']}"
        else:
            yield f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r}"


def _section(model: type[BaseModel], sections: list[int | str]) -> type[BaseModel]:
    """Return the settings class of a section; numbers are indexes of lists."""
    for section in sections:
        if isinstance(section, str):
            model = next(_models(model.model_fields[section].annotation))
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - a type's form has no type
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _hint(name: str) -> str:
    known = packaged_names()
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"these are packaged: {', '.join(known)}"
