"""The commands `keys add`, `list`, `revoke` and `rotate`, which write the file of API keys."""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from completion_server.auth.key_file import ApiKey, editing, new_key, read_keys, rotated
from completion_server.core.credential import Scope
from completion_server.core.errors import ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_MAX_DURATION_S = 3650 * 86_400
_PIPED_COLUMNS = 1000
_SHOWN = ("id", "user", "tenant", "scopes", "created", "expires", "revoked")
_FILE = click.Path(dir_okay=False, path_type=Path)


class _Duration(click.ParamType[int]):
    """A duration such as 90d; its value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Return the seconds, or fail."""
        match = re.fullmatch(r"([0-9]{1,9})([smhdw])", str(value))
        seconds = int(match[1]) * _UNITS[match[2]] if match else 0
        if not 0 < seconds <= _MAX_DURATION_S:
            self.fail(f"{value}: must be a number with s, m, h, d or w, such as 90d, and at most ten years", param, ctx)
        return seconds


def _file_options(command: Callable[..., None]) -> Callable[..., None]:
    config = click.option("--config", "-c", type=_FILE, help="TOML file of the server; it names auth.keys_file.")
    return click.option("--file", "-f", type=_FILE, help="The file of keys, instead of --config.")(config(command))


@click.group()
def keys() -> None:
    """Give out and take back the API keys that callers present to a server.

    The file of keys holds no secret that could be presented. A running server reads it again within a second.
    Without --file and --config it is the one that the environment variable COMPLETION_SERVER__AUTH__KEYS_FILE names.
    """


@keys.command()
@click.argument("user")
@click.option("--tenant", default="", metavar="NAME", help="The user's team or company.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    default=[Scope.COMPLETE.value, Scope.FEEDBACK.value],
    show_default="complete and feedback",
    help="What the user may do; may be repeated.",
)
@click.option(
    "--expires", type=_Duration(), metavar="DURATION", help="When the key ends, such as 90d. [default: never]"
)
@_file_options
def add(
    user: str, tenant: str, scopes: tuple[str, ...], expires: int | None, file: Path | None, config: Path | None
) -> None:
    """Make a key for USER and print its token, which can't be shown again.

    \b
    Examples:
      completion-server keys add ada --tenant acme --expires 90d --config server.toml
      completion-server keys add ops --scope admin --file keys.json > ~/.config/completion/token
    """
    path = _path(file, config)
    with _plain_faults(path), editing(path) as found:
        try:
            key, token = new_key(user, tenant, [Scope(name) for name in scopes], time.time(), expires)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        found[key.id] = key
    click.echo(f"Key {_described(key)} is in {path}. Its token, which is shown only once:", err=True)
    click.echo(token)  # alone on standard output


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array instead; times are Unix seconds.")
@_file_options
def list_(as_json: bool, file: Path | None, config: Path | None) -> None:
    """Show all keys, also those that were revoked or have expired.

    \b
    Example:
      completion-server keys list --config server.toml
    """
    path, now = _path(file, config), time.time()
    with _plain_faults(path):
        found = read_keys(path)
    if as_json:
        rows = [{name: getattr(key, name) for name in _SHOWN} | {"state": _state(key, now)} for key in found]
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(*("id", "user", "tenant", "scopes", "created", "expires", "state"), box=None, pad_edge=False)
    for key in found:
        expires = "never" if key.expires is None else _date(key.expires)
        table.add_row(key.id, key.user, key.tenant, " ".join(key.scopes), _date(key.created), expires, _state(key, now))
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS  # in a pipe each key is one line
    Console(highlight=False, markup=False, width=width).print(table)


@keys.command()
@click.argument("name", metavar="ID|USER")
@click.option("--tenant", metavar="NAME", help="The tenant of USER, if more than one has a user of that name.")
@_file_options
def revoke(name: str, tenant: str | None, file: Path | None, config: Path | None) -> None:
    """Revoke a key, or all keys of a user. A server ends their streams within 5 seconds.

    \b
    Examples:
      completion-server keys revoke 3f2a9c0d1e4b --config server.toml
      completion-server keys revoke ada --config server.toml
    """
    path, now = _path(file, config), time.time()
    with _plain_faults(path), editing(path) as found:
        chosen = [found[name]] if name in found else [key for key in found.values() if key.user == name]
        chosen = [key for key in chosen if tenant in (None, key.tenant)]
        if not chosen:
            raise click.ClickException(f"no key or user {name} in {path}")
        tenants = sorted({key.tenant for key in chosen})
        if len(tenants) > 1:
            raise click.ClickException(f"tenants {', '.join(tenants)} have a user {name}: name one with --tenant")
        revoked = [key for key in chosen if key.revoked is None]
        for key in revoked:
            found[key.id] = replace(key, revoked=int(now))
    for key in revoked:
        click.echo(f"Revoked key {_described(key)}.")
    if not revoked:
        click.echo(f"Nothing to do: {name} was revoked before.")


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap", type=_Duration(), metavar="DURATION", help="How long the old token still counts, such as 1h."
)
@_file_options
def rotate(key_id: str, overlap: int | None, file: Path | None, config: Path | None) -> None:
    """Give a key a new secret and print its token. Its user, tenant, scopes and expiry stay.

    Without --overlap the old token ends at once, and the streams that presented it within 5 seconds.

    \b
    Example:
      completion-server keys rotate 3f2a9c0d1e4b --overlap 1h --config server.toml
    """
    path, now = _path(file, config), time.time()
    with _plain_faults(path), editing(path) as found:
        key = found.get(key_id)
        if key is None:
            raise click.ClickException(f"no key {key_id} in {path}")
        if not key.is_usable(now):
            raise click.ClickException(f"key {key_id} is {_state(key, now)}: add another one")
        try:
            found[key_id], token = rotated(key, now, overlap or 0)
        except ValueError as error:
            raise click.ClickException(f"key {key_id}: {error}") from error
    click.echo(f"Key {_described(key)} has a new token, which is shown only once:", err=True)
    click.echo(token)


def _path(file: Path | None, config: Path | None) -> Path:
    """Return the file of keys."""
    if file is not None and config is not None:
        raise click.UsageError("Give --file or --config, not both.")
    if file is not None:
        return file.expanduser().resolve()
    from completion_server.config import load_config  # slow, and --file needs none of it

    try:
        named = load_config(config, (), os.environ).auth.keys_file
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if not named:
        where = f"{config} has no auth.keys_file." if config else "Name the file of keys."
        raise click.UsageError(f"{where} Give --file FILE, or --config with the server's configuration.")
    return Path(named)


@contextlib.contextmanager
def _plain_faults(path: Path) -> Iterator[None]:
    """Tell of a file that can't be used in words."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path} can't be used: {error.strerror or error}") from error
    except ValueError as error:
        raise click.ClickException(f"{path} is broken: {error}") from error


def _described(key: ApiKey) -> str:
    tenant = f" of {key.tenant}" if key.tenant else ""
    expires = "" if key.expires is None else f", until {_date(key.expires)}"
    return f"{key.id} for {key.user}{tenant} ({', '.join(key.scopes)}{expires})"


def _state(key: ApiKey, now: float) -> str:
    if key.revoked is not None:
        return "revoked"
    return "usable" if key.is_usable(now) else "expired"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
