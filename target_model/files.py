"""A folder that appears whole or not at all: filled beside its final place, then renamed."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from target_model.errors import QuantiseError


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill that becomes `path` on success and vanishes on failure.

    Raises QuantiseError when `path` exists already, or the disk refuses (full, read-only).
    """
    if path.exists():
        raise QuantiseError(f"{path} exists already; choose another --out or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise QuantiseError(f"cannot write beside {path}: {error.strerror or error}") from error
    try:
        temporary.chmod(0o755)
        yield temporary
        temporary.rename(path)
    except OSError as error:
        raise QuantiseError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
