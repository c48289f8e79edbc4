"""Which code the embedded models learn from, each source with its licence.

All of it is in the locked environment, so every machine that can run the server can rerun the training. Copyleft
packages (MPL, LGPL) are left out. Package names are those of the distributions; the card lists the versions that were
read.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A distribution, its licence, and what of it is read (`only`) or skipped (`without`), as path prefixes."""

    name: str
    licence: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ("\0",)


EXCLUDED_PARTS = frozenset(
    {
        "__pycache__", "_pyrepl", "_vendor", "encodings", "ensurepip", "idlelib", "lexers", "lib2to3", "locales",
        "msilib", "pydoc_data", "site-packages", "stringprep.py", "styles", "test", "tests", "testing", "turtledemo",
        "unicode_codes", "unidata", "vendor",
    }
)  # fmt: skip

STDLIB = Source("python-stdlib", "PSF-2.0")

PACKAGES: tuple[Source, ...] = (
    Source("aiohttp", "Apache-2.0"),
    Source("anyio", "MIT"),
    Source("attrs", "MIT"),
    Source("click", "BSD-3-Clause"),
    Source("cloudpickle", "BSD-3-Clause"),
    Source("compressed-tensors", "Apache-2.0"),
    Source("dnspython", "ISC"),
    Source("docstring_parser", "MIT"),
    Source("einops", "MIT"),
    Source("fastapi", "MIT"),
    Source("filelock", "MIT"),
    Source("fsspec", "BSD-3-Clause"),
    Source("h11", "MIT"),
    Source("httpcore", "BSD-3-Clause"),
    Source("httpx", "BSD-3-Clause"),
    Source("huggingface_hub", "Apache-2.0"),
    Source("Jinja2", "BSD-3-Clause"),
    Source("jsonschema", "MIT"),
    Source("lark", "MIT"),
    Source("loguru", "MIT"),
    Source("markdown-it-py", "MIT"),
    Source("mcp", "MIT"),
    Source("mypy", "MIT", without=("mypy/typeshed", "mypyc/")),
    Source("networkx", "BSD-3-Clause"),
    Source("numpy", "BSD-3-Clause"),
    Source("opentelemetry-api", "Apache-2.0"),
    Source("opentelemetry-sdk", "Apache-2.0"),
    Source("packaging", "Apache-2.0 OR BSD-2-Clause"),
    Source("pillow", "MIT-CMU"),
    Source("pip", "MIT"),
    Source("pluggy", "MIT"),
    Source("prometheus_client", "Apache-2.0 AND BSD-2-Clause"),
    Source("psutil", "BSD-3-Clause"),
    Source("pycparser", "BSD-3-Clause", without=("pycparser/lextab", "pycparser/yacctab")),
    Source("pydantic", "MIT", without=("pydantic/v1",)),
    Source("pydantic-settings", "MIT"),
    Source("Pygments", "BSD-2-Clause"),
    Source("PyJWT", "MIT"),
    Source("pytest", "MIT"),
    Source("PyYAML", "MIT"),
    Source("pyzmq", "BSD-3-Clause"),
    Source("redis", "MIT", without=("redis/commands",)),
    Source("requests", "Apache-2.0"),
    Source("rich", "MIT"),
    Source("sentry-sdk", "MIT"),
    Source("starlette", "BSD-3-Clause"),
    Source("structlog", "MIT OR Apache-2.0"),
    Source("torch", "BSD-3-Clause", only=("torch/nn/", "torch/optim/", "torch/utils/", "torch/distributions/")),
    Source(
        "transformers", "Apache-2.0",
        only=("transformers/data/", "transformers/generation/", "transformers/utils/"),
    ),
    Source("typer", "MIT"),
    Source("urllib3", "MIT"),
    Source("uvicorn", "BSD-3-Clause"),
    Source("websockets", "BSD-3-Clause"),
)  # fmt: skip
