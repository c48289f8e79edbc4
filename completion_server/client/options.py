"""Options that several commands share, and the end of a command that failed."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from completion_client import Endpoint, EndpointError, ServiceError, Token, UnauthenticatedError, parse_endpoints
from completion_client.endpoint import DEFAULT_ADMIN_PORT, DEFAULT_PORT, with_port
from completion_client.tls_faults import explain_tls
from completion_client.token_sources import VARIABLE
from completion_server.client.output import explain

DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"

_FLAGS = {
    "ca": "--tls-ca",
    "certificate": "--tls-cert",
    "key": "--tls-key",
    "user": "--user",
    "token": f"--token-file, --token-command or {VARIABLE}",
}
"""The flags of an endpoint's fields."""

_Command = Callable[..., None]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_CREDENTIALS = (
    click.option("--tls-ca", type=_FILE, help="Encrypt, and check the server's certificate against this file."),
    click.option("--tls-cert", type=_FILE, help="The client's certificate, if the server needs one."),
    click.option("--tls-key", type=_FILE, help="The key of --tls-cert."),
    click.option(
        "--token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The token that says who you are, if the server wants one: a file with it alone.  "
        f"[default: the environment variable {VARIABLE}]",
    ),
    click.option(
        "--token-command",
        metavar="COMMAND",
        help="A command that prints the token, such as 'vault read -field=token secret/me'. No shell runs it.",
    ),
)


def server_options(command: _Command) -> _Command:
    """Add the options of the servers to ask; the command gets them as the argument `endpoints`."""
    address = _address("--server", DEFAULT_PORT, "COMPLETION_SERVER_ADDRESS", "The server", takes_several=True)
    return _with_endpoints(command, address, "--server", DEFAULT_PORT, takes_several=True)


def admin_options(
    what: str = "The server's admin listener", *, takes_several: bool = False
) -> Callable[[_Command], _Command]:
    """Add the options of an admin listener, or of several; see `_with_endpoints`."""
    env = "COMPLETION_SERVER_ADMIN_ADDRESS"
    address = _address("--admin", DEFAULT_ADMIN_PORT, env, what, takes_several=takes_several)
    instead = click.option("--server", hidden=True, expose_value=False, callback=_point_to_admin)
    return lambda command: instead(
        _with_endpoints(command, address, "--admin", DEFAULT_ADMIN_PORT, takes_several=takes_several)
    )


def _point_to_admin(_context: click.Context, _option: click.Parameter, address: str | None) -> None:
    if address is not None:
        msg = f"--server is for editors' requests; name the admin listener: --admin HOST[:{DEFAULT_ADMIN_PORT}]"
        raise click.UsageError(msg)


def _address(flag: str, port: int, env: str, what: str, *, takes_several: bool) -> Callable[[_Command], _Command]:
    several = "; several replicas with commas between them" if takes_several else ""
    text = f"{what}: HOST[:PORT], or unix:PATH{several}."
    shown: dict[str, Any] = {"envvar": env, "show_default": True, "show_envvar": True, "metavar": "ADDRESS"}
    return click.option(flag, "address", default=f"127.0.0.1:{port}", help=text, **shown)


def _with_endpoints(
    command: _Command, address: Callable[[_Command], _Command], flag: str, port: int, *, takes_several: bool
) -> _Command:
    """Add options for an address, TLS files and a token; the command gets them as one argument, `endpoint`.

    With `takes_several` the argument is `endpoints`, a tuple: the option takes addresses with commas between them.
    """

    @functools.wraps(command)
    def with_endpoints(
        address: str,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        token_file: Path | None,
        token_command: str | None,
        **rest: object,
    ) -> None:
        if (tls_cert is None) != (tls_key is None):
            raise click.UsageError("--tls-cert and --tls-key go together: a certificate is no use without its key")
        try:
            addresses = [each.address for each in parse_endpoints(address)] if takes_several else [address]
            token = _token(token_file, token_command)
            found = tuple(Endpoint(with_port(each, port), tls_ca, tls_cert, tls_key, token) for each in addresses)
            command(**{"endpoints": found} if takes_several else {"endpoint": found[0]}, **rest)
        except EndpointError as error:
            flags = {"address": flag} | _FLAGS
            raise click.UsageError(f"{flags[error.field]}: {error.problem}") from error

    decorated: _Command = with_endpoints
    for option in reversed((address, *_CREDENTIALS)):
        decorated = option(decorated)
    return decorated


def _token(file: Path | None, command: str | None) -> Token:
    """Return the token of the options, else that of the environment, which may be none."""
    if file is not None and command is not None:
        raise click.UsageError("give --token-file or --token-command, not both")
    if file is not None:
        return Token.of_file(file)
    if command is None:
        return Token.of_environment()
    try:
        return Token.of_command(command)
    except ValueError as error:
        raise click.UsageError(f"--token-command: {str(error).lower()}") from error


def fail(error: ServiceError, endpoint: Endpoint, *, reached: bool) -> NoReturn:
    """End the command with status 1 and an explanation."""
    click.echo(f"Error: {failure(error, endpoint, reached=reached)}", err=True)
    sys.exit(1)


def failure(error: ServiceError, endpoint: Endpoint, *, reached: bool) -> str:
    """Return a sentence that explains why a call failed. Without a connection it makes a TLS handshake of its own."""
    text = "" if reached else explain_tls(endpoint)
    if endpoint.token is not None and isinstance(error, UnauthenticatedError):
        error = endpoint.token.refusal(error)
    return text or explain(error, endpoint.address, reached=reached)
