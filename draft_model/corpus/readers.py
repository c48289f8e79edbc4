"""Reads every kind of source as a stream of documents; filters come later.

Folders, the running Python's library, wheels and source archives, JSON lines, Parquet, Hugging Face data sets. The
sources of the embedded models are the standard library and packages, which pip fetches as wheels.
"""

import hashlib
import lzma
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email

from draft_model.core import PipelineError
from draft_model.corpus.licences import (
    OWN,
    START,
    is_copyleft,
    is_permissive,
    is_restricted,
    licence_of_text,
    read_licence,
)
from draft_model.corpus.store import Document

STDLIB = "python-stdlib"
STDLIB_LICENCE = "PSF-2.0"
UNKNOWN = "unknown"
LICENCE_CHARS = 80
"""Longest name of a licence; longer words in the metadata are a whole text."""
_NO_ARCHIVE = (zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
_METADATA = ("*.dist-info/METADATA", "PKG-INFO", "*.egg-info/PKG-INFO", "src/*.egg-info/PKG-INFO")
"""Places of a package's own metadata, in order; vendored packages have theirs in deeper folders."""
_LICENCE_NAME = re.compile(r"(licen[cs]e|copying).*", re.IGNORECASE)
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "content", "code"),
    "repository": ("repository", "repo_name", "max_stars_repo_name", "repository_name", "repo"),
    "path": ("path", "max_stars_repo_path", "file_path", "filename"),
    "licence": ("licence", "license", "licenses", "max_stars_repo_licenses", "detected_licenses"),
}
"""Names of the columns in our own files and in known data sets of code."""
PACKAGES: tuple[str, ...] = (
    "aiohttp", "algorithms", "anyio", "attrs", "boltons", "cachetools", "celery", "click", "cloudpickle",
    "compressed-tensors", "dask", "dill", "django", "dnspython", "docstring_parser", "einops", "fastapi", "filelock",
    "flask", "fonttools", "fsspec", "grimp", "h11", "hatchling", "httpcore", "httpx", "huggingface_hub",
    "import-linter", "jinja2", "jsonschema", "lark", "llvmlite", "lm-format-enforcer", "loguru", "markdown-it-py",
    "matplotlib", "mcp", "mistral_common", "more-itertools", "mpmath", "mypy", "networkx", "nltk", "numba", "numpy",
    "openai", "opentelemetry-api", "opentelemetry-sdk", "packaging", "pandas", "pillow", "pip", "pluggy",
    "prometheus_client", "psutil", "pycparser", "pydantic", "pydantic-settings", "pygments", "pyjwt", "pyparsing",
    "pytest", "python-dateutil", "pyyaml", "pyzmq", "redis", "referencing", "requests", "rich", "scikit-learn",
    "scipy", "sentry-sdk", "sortedcontainers", "sphinx", "sqlalchemy", "starlette", "statsmodels", "structlog",
    "sympy", "textual", "tomlkit", "toolz", "tornado", "twisted", "typer", "urllib3", "uvicorn",
    "websockets", "werkzeug",
)  # fmt: skip
HELD_OUT: tuple[str, ...] = ("flask", "more-itertools", "tornado", "toolz")
"""The first pair of models did not learn from them either, so both pairs can be measured on them."""


def read_folder(root: Path, suffixes: tuple[str, ...], unlicensed: str = OWN) -> Iterator[Document]:
    """Read a folder as one repository, under the licence of its licence file; `unlicensed` if it has none."""
    if not root.is_dir():
        raise PipelineError(f"{root} is not a folder")
    licence = _folder_licence(root, suffixes) or unlicensed
    name = root.resolve().name if root.name in {"", ".."} else root.name  # A link keeps its own name.
    for path, text in _files(root, suffixes):
        yield Document(name, path, licence, text)


def read_repositories(root: Path, suffixes: tuple[str, ...]) -> Iterator[Document]:
    """Read every folder in `root` as a repository, under the licence of its licence file."""
    if not root.is_dir():
        raise PipelineError(f"{root} is not a folder")
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        yield from read_folder(folder, suffixes, UNKNOWN)


def read_stdlib() -> Iterator[Document]:
    """Read the running interpreter's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    version = sys.version.split()[0]
    for path, text in _files(root, (".py",)):
        yield Document(STDLIB, path, STDLIB_LICENCE, text, version)


def read_archive(path: Path) -> Iterator[Document]:
    """Read a wheel (.whl) or a source archive (.tar.gz, .zip) of a package, licence and version from its metadata.

    Raises PipelineError when it can't be read or has no metadata of its own.
    """
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary:
        how: dict[str, Any] = {"format": "zip"} if path.suffix in {".whl", ".zip"} else {"filter": "data"}
        try:
            shutil.unpack_archive(path, temporary, **how)
        # An encrypted member, or a compression that Python does not know, is a RuntimeError.
        except (OSError, EOFError, RuntimeError, ValueError, *_NO_ARCHIVE) as error:
            raise PipelineError(f"{path} is not an archive that can be read: {error}") from error
        root, tops = Path(temporary), list(Path(temporary).iterdir())
        if path.suffix != ".whl" and len(tops) == 1 and tops[0].is_dir():
            root = tops[0]
        candidates = next(filter(None, (list(root.glob(pattern)) for pattern in _METADATA)), [])
        if len(candidates) != 1:
            raise PipelineError(f"{path} has no package metadata of its own, or that of several packages")
        metadata, _ = parse_email(candidates[0].read_bytes())
        licence = licence_of_metadata({**metadata, "classifier": metadata.get("classifiers", [])})
        name, version = metadata.get("name", path.stem), metadata.get("version", "-")
        for inner, text in _files(root, (".py",)):
            yield Document(name, inner, licence, text, version)


def read_table(path: Path) -> Iterator[Document]:
    """Read JSON lines, gzipped or not, or a Parquet file, with columns as in `_COLUMNS`."""
    if not path.is_file():
        raise PipelineError(f"{path} is not a file")
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return _rows(str(path), kind, data_files=str(path), split="train")


def read_hugging_face(name: str) -> Iterator[Document]:
    """Stream the data set NAME or NAME:CONFIG of the Hugging Face hub, or a folder in its layout."""
    folder, _, config = name.partition(":")
    return _rows(name, folder, config or None, split="train")


def _rows(origin: str, *arguments: str | None, **options: str) -> Iterator[Document]:
    """The rows of a data set; PipelineError, which begins with `origin`, when it can't be read."""
    import datasets  # type: ignore[import-untyped]  # takes seconds to import
    import pyarrow as pa  # type: ignore[import-untyped]

    number = 0
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(*arguments, **options, streaming=True)
        for number, record in enumerate(rows, 1):
            yield document_of(record, f"{origin}, row {number},")
    except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException, datasets.exceptions.DatasetsError) as error:
        raise PipelineError(f"{origin} can't be read after row {number}: {error}") from error


def document_of(record: Mapping[str, Any], origin: str) -> Document:
    """A row as a document. A row without a repository is a repository of its own; a missing licence is `UNKNOWN`.

    Raises PipelineError, which begins with `origin`, when the row has no text.
    """
    has_text = any(column in record for column in _COLUMNS["text"])
    text = _column(record, "text") or ""  # An empty file is refused later, for its size.
    if not has_text:
        raise PipelineError(f"{origin} has no column for the text: {', '.join(sorted(record)) or 'it has none'}")
    if not isinstance(text, str):
        raise PipelineError(f"{origin} has a text that is {type(text).__name__}, not a string")
    path = str(_column(record, "path") or "unnamed.py")
    licence: Any = _column(record, "licence") or UNKNOWN
    names = [read_licence(str(name)) for name in (licence if isinstance(licence, list) else [licence])]
    if len(names) > 1:
        names = [f"({name})" if re.search(r"\bOR\b", name) else name for name in names]  # AND binds before OR.
    # Named by its text: by the path, all files without a repository and of the same name would be on one side.
    repository = _column(record, "repository") or hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return Document(str(repository), path, " AND ".join(names), text)


def fetch_wheels(folder: Path) -> None:
    """Let pip download the packages of the embedded corpus; PipelineError with pip's words when it can't."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipelineError(f"pip can't fetch the packages to learn from: {done.stderr.strip()[-300:]}")


def read_embedded_sources(wheels: Path) -> Iterator[Document]:
    """Read the standard library and the wheels of `fetch_wheels`; of copies the earlier one is kept."""
    yield from read_stdlib()
    for path in sorted(wheels.glob("*.whl")):
        yield from read_archive(path)


def licence_of_metadata(metadata: Mapping[str, Any]) -> str:
    """The licence of a package, from its expression, its classifiers, or its words, in this order.

    Words that restrict, or begin with copyleft, take precedence over the classifiers, which do not express added
    conditions. Later parts of a text may list bundled code.
    """
    expression = str(metadata.get("license_expression", "") or "")
    if expression:
        return read_licence(expression)
    said = " ".join(str(metadata.get("license", "") or "").split())
    if not is_permissive(said) and (is_restricted(said) or is_copyleft(said[:START])):
        return UNKNOWN
    classifiers = metadata.get("classifier", []) or []
    ours = [line.rpartition("::")[2].strip() for line in classifiers if line.startswith("License ::")]
    named = [read_licence(name) for name in ours if name != "OSI Approved"]
    if named:
        return " AND ".join(sorted(set(named)))
    name = licence_of_text(said) or read_licence(said)
    return name if is_permissive(name) or 0 < len(name) <= LICENCE_CHARS else UNKNOWN


def _folder_licence(root: Path, suffixes: tuple[str, ...]) -> str:
    """The licence of the first licence file, `UNKNOWN` if it is no common one; "" if there is no file."""
    named = sorted(path for path in root.iterdir() if _LICENCE_NAME.fullmatch(path.name) and path.is_file())
    files = [path for path in named if path.suffix not in suffixes]  # No licence.py.
    return (licence_of_text(_read(files[0]) or "") or UNKNOWN) if files else ""


def _column(record: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - a data set's own value
    return next((record[column] for column in _COLUMNS[name] if record.get(column)), None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _files(root: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The paths below `root` and the texts of the files with one of these suffixes, less those that are not UTF-8."""
    for path in sorted(root.rglob("*")):
        text = _read(path) if path.suffix in suffixes and path.is_file() else None
        if text is not None:
            yield path.relative_to(root).as_posix(), text
