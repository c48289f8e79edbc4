"""Classes of immutable values that are made for each request."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields can't be assigned, as the type checker sees it.

    Nothing checks that at run time. `dataclass(frozen=True)` does, and so takes four to nine times as long to make an
    object with five to twenty fields; a request makes about fifty objects.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
