"""Reads the options of `plan` from a TOML file."""

import difflib
import tomllib
from pathlib import Path

import click


def take_inputs(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make the keys of a file the defaults of the command's options. Its paths are relative to the file."""
    if path is None:
        return
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} can't be read: {error}", ctx, param) from error
    options = {_key_of(each): each for each in ctx.command.params if each is not param}
    ctx.default_map = {}
    for key, value in found.items():
        if key not in options:
            near = difflib.get_close_matches(key, options, n=1)
            hint = f"did you mean {near[0]}?" if near else "its keys are this command's options"
            raise click.BadParameter(f"{path} {key}: unknown key; {hint}", ctx, param)
        option = options[key]
        is_path = isinstance(option.type, click.Path) and isinstance(value, str)
        ctx.default_map[option.name or key] = path.parent / value if is_path else value


def _key_of(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len).removeprefix("--").replace("-", "_")
