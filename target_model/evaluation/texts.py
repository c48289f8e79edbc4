"""Reads texts of code: files to calibrate on and held-out files to measure the loss of."""

import json
from pathlib import Path

from target_model.core.errors import EvaluationError


def read_texts(path: Path) -> list[str]:
    """Read the texts of a file, JSON lines or Parquet with a column `text`; EvaluationError when it has none."""
    try:
        texts = _read_parquet(path) if path.suffix == ".parquet" else _read_lines(path)
    except (OSError, ValueError, KeyError) as error:
        raise EvaluationError(f"{path} has no texts that can be read: {error}") from error
    if not texts:
        raise EvaluationError(f"{path} has no texts")
    return texts


def _read_lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _read_parquet(path: Path) -> list[str]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # takes a while to import

    texts: list[str] = pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
    return texts
