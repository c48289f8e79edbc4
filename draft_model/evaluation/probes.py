"""Twenty probes: predictable places in code that a model completes greedily, with the server's prompts.

A probe passes when the completion begins with one of the texts that any Python programmer would expect.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from draft_model.data.encoder import TemplateEncoder

MAX_NEW_TOKENS = 24


@dataclass(frozen=True)
class CursorProbe:
    """The text around a cursor and the accepted beginnings; `typed` is the cursor's line left of the cursor."""

    before: str
    typed: str
    after: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class ProbeResult:
    """A probe, its completion, and whether that begins as expected."""

    probe: CursorProbe
    completion: str
    is_right: bool


_INIT = "class Point:\n    def __init__(self, x, y):\n"
_READ = "import json\n\n\ndef read_config(path):\n"
_TOTAL = "def total(items):\n    result = 0\n"

PROBES: tuple[CursorProbe, ...] = (
    CursorProbe("", "for i in ra", "", ("nge(",)),
    CursorProbe(_TOTAL, "    for item in it", "\n", ("ems:",)),
    CursorProbe(_INIT, "        self.x = ", "\n", ("x",)),
    CursorProbe(_INIT + "        self.x = x\n", "        self.y", "\n", (" = y",)),
    CursorProbe("class Node:\n", "    def __init__(se", "", ("lf",)),
    CursorProbe("class Node:\n", "    def __in", "", ("it__(self",)),
    CursorProbe("def main():\n", '    print("hello"', "\n", (")",)),
    CursorProbe("def first(items):\n", "    return items[0", "\n", ("]",)),
    CursorProbe(_TOTAL + "    for item in items:\n        result += item\n", "    ret", "\n", ("urn result",)),
    CursorProbe("import os\n", "import s", "\nimport time\n", ("ys",)),
    CursorProbe("try:\n    import numpy as np\n", "except Imp", ":\n    np = None\n", ("ortError",)),
    CursorProbe("def check(value):\n    if value < 0:\n", "        raise Val", "\n", ("ueError(",)),
    CursorProbe("def run():\n    pass\n\n\n", 'if __name__ == "__ma', "\n    run()\n", ('in__":',)),
    CursorProbe(_READ, "    with open(path) a", "\n        return json.load(file)\n", ("s file:",)),
    CursorProbe(_READ + "    with open(path) as file:\n", "        return json.lo", "\n", ("ad(file)",)),
    CursorProbe("def square(x):\n", "    return x *", "\n", (" x", "* 2")),
    CursorProbe("def is_empty(items):\n", "    return len(items) =", "\n", ("= 0",)),
    CursorProbe(
        "def find(items, key):\n    if key not in items:\n", "        return No", "\n    return items[key]\n", ("ne",)
    ),
    CursorProbe("import os\n\n\ndef join(folder, name):\n", "    return os.path.jo", "\n", ("in(folder, name)",)),
    CursorProbe("settings = {}\n", "for key, value in settings.ite", "\n    print(key, value)\n", ("ms():",)),
)


def complete(model: PreTrainedModel, encoder: TemplateEncoder, before: str, typed: str, after: str) -> str:
    """The greedy completion at a cursor, at most `MAX_NEW_TOKENS` tokens."""
    prompt = torch.tensor([encoder.encode_prompt(before, typed, after)])
    generator: Any = model
    generator.generation_config = GenerationConfig(eos_token_id=encoder.stops)  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        output = generator.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            pad_token_id=encoder.end,
        )
    return encoder.decode(output[0, prompt.shape[1] :].tolist())


def run_probes(
    model: PreTrainedModel, encoder: TemplateEncoder, probes: tuple[CursorProbe, ...] = PROBES
) -> list[ProbeResult]:
    """Complete every probe."""
    results = []
    for probe in probes:
        completion = complete(model, encoder, probe.before, probe.typed, probe.after)
        results.append(ProbeResult(probe, completion, completion.startswith(probe.expected)))
    return results


def probe_table(results: list[ProbeResult]) -> str:
    """The probes as a Markdown table: the line with the cursor as `│`, the completion, and whether it is right."""
    rows = ["| the line, │ is the cursor | came out | as expected |", "| --- | --- | --- |"]
    for result in results:
        line = f"{result.probe.typed.strip()}│{result.probe.after.partition(chr(10))[0]}"
        rows.append(f"| {_code(line)} | {_code(result.completion)} | {'yes' if result.is_right else 'no'} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    shown = text.replace("\n", "⏎").replace("|", "\\|")
    if not shown:
        return "(nothing)"
    fence = "``" if "`" in shown else "`"
    return f"{fence}{shown}{fence}"
