"""Validates trees of settings, as TOML has them, by the dataclasses that describe their sections.

An error names the key, the limit and the value, and for an unknown key the nearest known one.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from completion_server.core.errors import ConfigError

Section = TypeVar("Section")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read_section(kind: type[Section], tree: Mapping[str, Any], name: str = "") -> Section:
    """Return the section that a tree describes; its keys have `name` before them in errors.

    Raises:
        ConfigError: the message has one line for each fault.

    """
    faults = list(_unknown_keys(tree, kind, f"{name}." if name else ""))
    if faults:
        raise ConfigError("\n".join(faults))
    try:
        section: Section = _adapter(kind).validate_python(tree)
    except ValidationError as error:
        for fault in error.errors():
            parts = [part for part in (name, *map(str, fault["loc"])) if part]
            if fault["type"] == "value_error":  # from a section's own check, which names the key
                faults += [".".join((*parts, line)) for line in str(fault["ctx"]["error"]).splitlines()]
            else:
                message = f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
                faults.append(f"{'.'.join(parts)}: {message}, got {fault['input']!r}")
        raise ConfigError("\n".join(faults)) from error
    return section


def _unknown_keys(tree: Mapping[str, Any], section: Any, prefix: str) -> Iterator[str]:  # noqa: ANN401 - a dataclass
    types = get_type_hints(section)
    known = {field.name for field in dataclasses.fields(section)}
    for key, value in tree.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
            yield f"{prefix}{key}: unknown key; {hint}"
        else:
            yield from _faults_in(value, types[key], f"{prefix}{key}")


def _faults_in(value: object, hint: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - any type
    """Yield the faults of a value, if it is a section or has sections by name."""
    named = get_args(hint)[1] if get_origin(hint) is dict else None
    if not dataclasses.is_dataclass(named or hint):
        return
    if not isinstance(value, Mapping):
        yield f"{name}: must be a section, got {value!r}"
    elif named is None:
        yield from _unknown_keys(value, hint, f"{name}.")
    else:
        for key, each in value.items():
            yield from _faults_in(each, named, f"{name}.{key}")
