"""What the package exports: whoever calls it can import each type of its signatures from it."""

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import completion_client

AMONG_ITS_PARTS = {"Connection", "FixedToken", "OpenRequest", "Replicas", "SessionStream", "TokenCommand", "TokenFile"}
"""Types of methods that one part of the package has for another, and of constructors that it calls itself."""


def functions_of(exported: object) -> Iterator[Callable[..., Any]]:
    """Yield a function, or the public functions of a class."""
    if not inspect.isclass(exported):
        if inspect.isfunction(exported):
            yield exported
        return
    for name, found in inspect.getmembers(exported):
        function = found.fget if isinstance(found, property) else found
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            yield function


def types_in(hint: Any) -> Iterator[str]:
    """Yield the names of the package's types in an annotation."""
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "completion_client":
        yield hint.__name__
    for part in hint if isinstance(hint, list) else typing.get_args(hint):
        yield from types_in(part)


def test_types_of_public_signatures_are_exported() -> None:
    names = vars(completion_client)
    used = set()
    for exported in completion_client.__all__:
        for function in functions_of(names[exported]):
            for hint in typing.get_type_hints(function, localns=names).values():
                used |= set(types_in(hint))
    assert {"Regions", "StreamListener"} <= used
    assert used - set(completion_client.__all__) == AMONG_ITS_PARTS
