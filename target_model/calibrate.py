"""Makes a calibrated INT8 copy with SmoothQuant and GPTQ, in an environment of their own.

llmcompressor pins other versions of transformers and compressed-tensors than vLLM, so it runs as a subprocess in that
environment. The copy has the format of the one made without data (`quantise.py`): the same matrices in int8, the same
configuration. SmoothQuant also changes the norms in front of them.
"""

import json
import random
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from target_model import llmcompressor_job
from target_model.core import TargetError, new_folder
from target_model.quantise import (
    LINEAR_SUFFIXES,
    Report,
    is_quantised,
    is_weight,
    read_config,
    refuse_unknown_matrices,
    tensors_of,
    weight_files,
    write_side_files,
)

ROW_TOKENS = 1024
MAX_CHARACTERS = 8 * ROW_TOKENS
"""Characters that are used of a text: more than a row of tokens has in any code."""
_STDERR = 2
ENVIRONMENT = Path(__file__).parents[1] / ".venv-calibration" / "bin" / "python"


@dataclass(frozen=True)
class Calibration:
    """The texts and settings of a calibration.

    `smoothing` is SmoothQuant's strength: the part of the activations' range that moves into the weights, 0 to 1; 0
    means GPTQ alone. `python` is the interpreter of an environment with llmcompressor.
    """

    texts: Sequence[str]
    num_samples: int = 256
    smoothing: float = 0.8
    python: Path = ENVIRONMENT


def quantise_calibrated(model: Path, out: Path, calibration: Calibration) -> Report:
    """Write `model` with its linear layers in INT8 to the new folder `out`, rounded for the least error on the texts.

    llmcompressor shows its progress and warnings on standard error. Raises TargetError for a missing environment, a
    folder that is not a model or of an unknown architecture, texts without content, weights that are not finite before
    or after, an `out` that exists, or a disk that refuses.
    """
    if not calibration.python.exists():
        raise TargetError(
            f"calibration needs an environment of its own, and there is no {calibration.python}: run `make calibration`"
        )
    config, files = read_config(model), weight_files(model)
    refuse_unknown_matrices(files)
    texts = sample(calibration.texts, calibration.num_samples)
    expected = {name for file in files for name, tensor in tensors_of(file) if is_quantised(name, tensor)}
    if not expected:
        raise TargetError(f"{model} has no linear layers that this scheme knows")
    with new_folder(out) as folder:
        with tempfile.TemporaryDirectory(prefix=".calibration-", dir=folder) as scratch:
            job = llmcompressor_job.Job(
                model=str(model.resolve()), out=scratch, texts=texts, row_tokens=ROW_TOKENS,
                smoothing=calibration.smoothing,
                targets=[suffix.removesuffix(".weight") for suffix in LINEAR_SUFFIXES],
            )  # fmt: skip
            _run(calibration.python, job, Path(scratch, "job.json"))
            for path in filter(is_weight, sorted(Path(scratch).iterdir())):
                path.rename(folder / path.name).chmod(0o644)
        num_kept = _check(folder, expected)
        write_side_files(model, folder, config)
        after = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return Report(len(expected), num_kept, sum(file.stat().st_size for file in files), after, None)


def sample(texts: Sequence[str], num_samples: int) -> list[str]:
    """One piece of each of `num_samples` texts, the same at every call; TargetError when all texts are blank."""
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise TargetError("the calibration data has no text that is not blank")
    number = min(num_samples, len(texts))
    chosen = (texts[index * len(texts) // number] for index in range(number))
    at = random.Random(0)
    # Random places: the beginnings of files are licences and imports.
    starts = ((text, at.randrange(max(1, len(text) - MAX_CHARACTERS))) for text in chosen)
    return [text[start : start + MAX_CHARACTERS] for text, start in starts]


def _run(python: Path, job: llmcompressor_job.Job, path: Path) -> None:
    """Run the job in the other environment; TargetError when it does not succeed. Its words go to standard error."""
    path.write_text(json.dumps(job), encoding="utf-8")
    # Isolated (-I): the other environment must not import this folder's modules or read this one's variables.
    command = [str(python), "-I", llmcompressor_job.__file__, str(path)]
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False).returncode
    except OSError as error:
        raise TargetError(f"cannot start {python}: {error.strerror}; run `make calibration`") from error
    if status == -signal.SIGKILL:
        raise TargetError("calibration was killed; it may have needed more memory than there is")
    if status:
        raise TargetError(f"calibration failed with status {status}; its own words are above")


def _check(folder: Path, expected: set[str]) -> int:
    """Count the kept tensors. TargetError when another set of matrices is in int8, or a value is not finite."""
    found, num_kept = set(), 0
    for file in weight_files(folder):
        for name, tensor in tensors_of(file):
            if tensor.dtype == torch.int8:
                found.add(name)
            elif not bool(torch.isfinite(tensor).all()):
                raise TargetError(f"calibration left {name} with values that are not finite")
            elif not name.endswith("_scale"):
                num_kept += 1
    if found != expected:
        raise TargetError(f"calibration treated other layers than asked for: {sorted(found ^ expected)[:3]}")
    return num_kept
