"""Which files are never sent, as in the shared table editors/policy_cases.json. Pure: paths and patterns go in."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

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


def secret_pattern(uri: str, folders: Iterable[str]) -> str | None:
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


def excluding_pattern(uri: str, patterns: Collection[str]) -> str | None:
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
