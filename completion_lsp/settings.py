"""The settings that an editor sends, as `initializationOptions` or as the section "completion" of its configuration.

Files with secrets are never sent: which those are is in the shared table editors/policy_cases.json.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

SECTION = "completion"
SECRETS = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg",
    "*.asc", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".ssh", ".gnupg", ".aws", ".kube", ".docker",
    ".netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd", ".git-credentials", "*.tfstate", "*.tfstate.*",
    "*.tfvars", "credentials", "credentials.*", "passwords", "passwords.*", "secrets", "secrets.*", ".secrets",
)  # fmt: skip
"""Names of files and folders whose text is never sent."""
SECRET_WORDS = ("*credential*", "*password*", "*secret*")
"""Names of files whose text is never sent, unless they are source code: that deals with secrets and has none."""
CODE = frozenset((
    "astro", "c", "cc", "cjs", "clj", "cljs", "cpp", "cs", "cshtml", "css", "cts", "cu", "cuh", "cxx", "dart",
    "elm", "erl", "ex", "exs", "fs", "fsx", "go", "gql", "graphql", "groovy", "h", "hh", "hpp", "hrl", "hs", "htm",
    "html", "hxx", "java", "jl", "js", "jsx", "kt", "kts", "less", "lua", "m", "mjs", "ml", "mli", "mm", "mts",
    "nim", "php", "pl", "pm", "proto", "py", "pyi", "r", "rb", "rs", "sass", "scala", "scss", "sol", "svelte",
    "swift", "ts", "tsx", "vb", "vue", "zig",
))  # fmt: skip
"""Extensions of source code."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is completed, and when."""

    enabled: bool = True
    """Whether anything is completed."""
    languages_off: tuple[str, ...] = ()
    """Languages, as the protocol names them, in which nothing is completed."""
    multi_line: bool = True
    """Whether a completion may have several lines, where a block begins."""
    delay_ms: int | None = None
    """Wait between a key and its request; None follows the user's rhythm."""
    timeout_ms: int = 5000
    """How long a completion may take that the user asks for; others take 2,000 at most."""
    exclude: tuple[str, ...] = field(default=())
    """Patterns of files whose text is not sent beside the built-in ones: of a name, or with a "/" of a path's end."""

    @property
    def timeout_s(self) -> float:
        """The time limit in seconds."""
        return self.timeout_ms / 1000

    def why_not(self, uri: str, language_id: str | None, folders: Iterable[str] = ()) -> str | None:
        """Return why a document may not be completed, None if it may; `folders` are the URIs of the workspace."""
        if not self.enabled:
            return "completions are off"
        if language_id in self.languages_off:
            return f"off for {language_id}"
        if secret := _secret_pattern(uri, folders):
            return f"excluded by {secret}, as files with secrets are"
        pattern = _excluding_pattern(uri, self.exclude)
        return f"excluded by {pattern}" if pattern else None


def section_of(given: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the settings in what an editor sends: alone or under `SECTION`. true or false alone is `enabled`.

    Editors without settings send null, or an empty list or string.
    """
    section = given.get(SECTION, given) if isinstance(given, dict) else given
    if isinstance(section, dict):
        return section
    return {} if section in (None, [], "") else {"enabled": section}


def updated(settings: Settings, given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return settings changed by those of an editor that can be used, and what is wrong with the others.

    Keys are in camel case; null is the default. If `enabled`, `languagesOff` or `exclude` is wrong, nothing is
    completed: what the user wants to keep back is not known then.
    """
    names = {_camel(each.name): each.name for each in fields(Settings)}
    changes: dict[str, Any] = {}
    problems = []
    is_unsure = False
    for key, value in given.items():
        close = [key] if key in names else get_close_matches(key, names, 1)
        problem = _problem(key, value) if key in names else _unknown(key, close, names)
        if problem:
            is_unsure |= close in (["enabled"], ["exclude"], ["languagesOff"])
            problems.append(problem)
        elif value is None:
            changes[names[key]] = _DEFAULTS[key]
        else:
            changes[names[key]] = tuple(value) if isinstance(value, list) else value
    if is_unsure:
        changes["enabled"] = False
        problems.append("nothing is completed until that is corrected")
    return replace(settings, **changes), problems


def _secret_pattern(uri: str, folders: Iterable[str]) -> str | None:
    """Return the built-in pattern that matches a document, None if none does. `folders` are the URIs of the workspace.

    A name above the workspace's folder counts only if it begins with a dot, as .ssh does: the others say nothing about
    the files.
    """
    path = _path_of(uri)
    roots = [root for each in folders if path.is_relative_to(root := _path_of(each))]
    num_above = max((len(each.parts) for each in roots), default=0)
    names = [name for i, name in enumerate(path.parts) if i >= num_above or name.startswith(".")]
    own = SECRET_WORDS if path.suffix.removeprefix(".") not in CODE else ()
    return _matching(SECRETS, names) or _matching(own, [path.name])


def _excluding_pattern(uri: str, patterns: Collection[str]) -> str | None:
    """Return the pattern that matches the document, or a folder that it is in; with a "/" the end of its path."""
    path = _path_of(uri)
    names = [each for each in patterns if "/" not in each]
    ends = (each for each in patterns if "/" in each and fnmatchcase(str(path), f"*/{each.lower().lstrip('/')}"))
    return _matching(names, path.parts) or next(ends, None)


def _matching(patterns: Iterable[str], names: Collection[str]) -> str | None:
    """Return the first pattern that matches a name, None if none does."""
    return next((each for each in patterns if any(fnmatchcase(name, each.lower()) for name in names)), None)


def _path_of(uri: str) -> PurePosixPath:
    """Return the path of a document in lower case."""
    return PurePosixPath(unquote(urlsplit(uri).path).replace("\\", "/").lower())


def _unknown(key: str, close: Sequence[str], keys: Iterable[str]) -> str:
    meant = f'; did you mean "{close[0]}"?' if close else f"; there are {', '.join(keys)}"
    return f'unknown setting "{key}"{meant}'


def _problem(key: str, value: Any) -> str:  # noqa: ANN401 - JSON
    """Return what is wrong with the value of a setting, "" if it can be used."""
    default = _DEFAULTS[key]
    if isinstance(default, bool):
        is_valid, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, tuple):
        is_valid = isinstance(value, list) and all(isinstance(each, str) for each in value)
        expected = "a list of strings"
    else:
        is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_MS
        expected = f"milliseconds, 0 to {_MOST_MS}"
    return "" if is_valid or value is None else f'"{key}" must be {expected}, got {value!r}'


_MOST_MS = 60_000


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


_DEFAULTS = {_camel(each.name): getattr(Settings(), each.name) for each in fields(Settings)}
