"""The command line: `target-model --help`."""

import signal
import sys

import click

from target_model.commands.evaluate import evaluate
from target_model.commands.quantize import quantize


@click.group(context_settings={"max_content_width": 110})
def main() -> None:
    """Make an INT8 copy of a target model, and measure its quality and speed.

    \b
    Example:
      target-model quantize --model target_model/embedded-bf16 --out work/embedded-int8
      target-model evaluate --model bf16=target_model/embedded-bf16 --model int8=target_model/embedded
    """
    signal.signal(signal.SIGTERM, _leave)


def _leave(_signal: int, _frame: object) -> None:
    """Leave by an exception, so that unfinished files are removed."""
    sys.exit(128 + signal.SIGTERM)


for command in (quantize, evaluate):
    main.add_command(command)


if __name__ == "__main__":
    main()
