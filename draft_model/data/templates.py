"""The prompt layouts: what a model is trained on is what the server asks.

The server's own process says which layout it builds for a tokenizer (`ask_server`); nothing is imported from it. The
layout of the embedded models is written down here, because their tokenizer is made after it; a test compares the two.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draft_model.core.errors import PipelineError

COMPLETION_ENDS = {"codellama": "▁<EOT>"}
"""Where a family ends a completion otherwise than a file ("Code Llama", section 2.3)."""
PREFIX_FIRST, SUFFIX_FIRST, PREFIX_ONLY = "prefix_first", "suffix_first", "prefix_only"
NOWHERE, OUTSIDE, INSIDE = "nowhere", "outside", "inside"
"""Where the paths of files stand: see the server's `PathAt`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One family's prompt format, its parts named as by the server; markers are single tokens, "" is none."""

    name: str
    order: str
    prefix: str
    suffix: str
    middle: str
    file: str
    is_typed_line_only: bool
    """Whether exactly the cursor's line stands behind the middle marker; else finished lines may stand there too."""
    # Not shown: the fingerprints of runs have the layout as it is shown, and the name says as much.
    ends: tuple[str, ...] = field(default=(), repr=False)
    """Further tokens that end a completion, where the vocabulary has them."""
    path_at: str = field(default=NOWHERE, repr=False)
    text_header: str = field(default="", repr=False)
    """Opens each file as plain text in the prefix, "{path}" replaced."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers that it is built with."""
        return tuple(marker for marker in (self.prefix, self.suffix, self.middle, self.file) if marker)


EMBEDDED = Layout(
    "embedded",
    PREFIX_FIRST,
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_sep|>",
    is_typed_line_only=True,
)


def ask_server(model: Path, settings: dict[str, Any] | None = None) -> Layout:
    """The layout that the server uses for a model or tokenizer folder, from its own prompt command.

    Raises PipelineError with the server's words when it can't serve that tokenizer.
    """
    command = [sys.executable, "-m", "completion_server.prompt", str(model), "--settings", json.dumps(settings or {})]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipelineError(f"the server builds no prompts for {model}: {done.stderr.strip()[-300:]}")
    told = json.loads(done.stdout.splitlines()[0])["template"]
    return read_layout({name: told[name] for name in Layout.__slots__})


def read_layout(told: dict[str, Any]) -> Layout:
    """A layout from JSON."""
    return Layout(**told | {"ends": tuple(told.get("ends", ()))})
