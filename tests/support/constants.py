"""Gives settings other values of their constants: the numbers that no operator sets, and tests must."""

import dataclasses
from typing import Any, TypeVar

from completion_server.config import Config

Settings = TypeVar("Settings")


def with_constants(settings: Settings, **values: Any) -> Settings:
    """Return settings of the same kind and values whose constants are `values`."""
    kind: Any = type(settings)
    unknown = [name for name in values if not hasattr(kind, name)]
    if unknown:
        msg = f"{kind.__name__} has no constant {', '.join(unknown)}"
        raise ValueError(msg)
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(kind) if field.init}
    changed: Settings = type(kind.__name__, (kind,), values)(**fields)
    return changed


def split_constants(overrides: tuple[str, ...]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the overrides of keys, and the constants by section that the other ones name in the same way."""
    keys, constants = [], dict[str, dict[str, Any]]()
    for override in overrides:
        name, _, text = override.partition("=")
        section, _, key = name.partition(".")
        kind = type(getattr(Config(), section, None))
        known = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {key}
        if key in known or not hasattr(kind, key):
            keys.append(override)
        else:
            constants.setdefault(section, {})[key] = type(getattr(kind, key))(text)
    return keys, constants
