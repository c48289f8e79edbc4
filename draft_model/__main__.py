"""The command line: `draft-model --help`."""

import os
import signal
import sys

import click

try:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from draft_model.commands.corpus import corpus, data, generate, label, tokenizer
    from draft_model.commands.evaluate import evaluate, held_out, plan_k
    from draft_model.commands.train import build_embedded, plan, train
except ModuleNotFoundError as error:
    raise SystemExit(f"draft-model needs the package {error.name}: install the extra train") from None


@click.group(context_settings={"max_content_width": 110, "show_default": True})
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")
def main(threads: int | None) -> None:
    """Make and measure drafts for speculative decoding, and the small models that come with the server.

    \b
    A draft for a target of your own:
      draft-model corpus --out corpus --parquet code.parquet
      draft-model generate --corpus corpus --target TARGET --out generated.jsonl --prompts 500000
      draft-model data --corpus corpus --tokenizer TARGET --out data --tokens 50e9 --row-tokens 4096 \\
          --block-tokens 16384 --generated generated.jsonl
      torchrun --nproc-per-node 8 -m draft_model train --preset draft-1b --data data --out run --tokens 50e9 \\
          --teacher TARGET
      draft-model evaluate --target TARGET --draft run/model --corpus corpus
    The embedded pair, hours on two cores; after an interruption the same command continues:
      draft-model build-embedded
    """
    signal.signal(signal.SIGTERM, _leave)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads or "OMP_NUM_THREADS" not in os.environ:  # torchrun divides the cores itself
        torch.set_num_threads(threads or os.cpu_count() or 1)
    disable_progress_bar()  # type: ignore[no-untyped-call]


def _leave(_signal: int, _frame: object) -> None:
    """Leave by an exception, so that unfinished files are removed."""
    sys.exit(128 + signal.SIGTERM)


for command in (corpus, tokenizer, data, generate, label, train, plan, evaluate, plan_k, held_out, build_embedded):
    main.add_command(command)


if __name__ == "__main__":
    main()
