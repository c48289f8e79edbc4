"""The command `playground`."""

import json
import sys
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import NoReturn
from urllib.parse import urljoin

import click

DEFAULT_URL = "http://127.0.0.1:8012/"
_TIMEOUT_S = 5.0
_TITLE = b"<title>completion-server playground</title>"
_REFUSED = (401, 403)
_MAX_BODY_BYTES = 10_000


@click.command()
@click.option(
    "--url", default=DEFAULT_URL, envvar="COMPLETION_SERVER_URL", show_default=True, show_envvar=True,
    help="Where the server's HTTP listener is: server.http_listen.",
)  # fmt: skip
@click.option(
    "--token", default="", envvar="COMPLETION_TOKEN", show_envvar=True,
    help="The token for the page, to check whether the server takes it.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with it instead."
)
@click.option("--open/--no-open", "opens", default=True, help="Whether to open a browser.  [default: open]")
def playground(url: str, token: str, token_file: Path | None, *, opens: bool) -> None:
    """Print the address of a running server's page, an editor with completions and live figures, and open it.

    The page asks for a token if the server needs one; no address ever has it.

    \b
    Start a server first: make serve, or
        completion-server serve --config server.toml --set server.http_listen=127.0.0.1:8012
    """
    if token_file is not None:
        token = token_file.read_text().strip()
    if fault := _fault(url):
        _fail(fault)
    refusal = _refusal(url, token)
    if refusal and token:
        _fail(f"the server refuses the token: {refusal}")
    click.echo(url)
    if refusal:
        click.echo("The page asks for a token; completion-server keys add NAME makes one.", err=True)
    if opens:
        webbrowser.open(url)


def _fail(fault: str) -> NoReturn:
    click.echo(f"Error: {fault}", err=True)
    sys.exit(1)


def _fault(url: str) -> str:
    """Return why there is no page at a URL; "" if there is one."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            if _TITLE in response.read(_MAX_BODY_BYTES):
                return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers with HTTP status {error.code}: it is no completion-server, or an older one"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"no server answers at {url} ({reason}); start one: make serve"
    return f"{url} is no page of a completion-server"


def _refusal(url: str, token: str) -> str:
    """Return why the server of a page takes no requests with this token, or without one if it is ""; "" if it does."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(urljoin(url, "/v1/models"), headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        if error.code not in _REFUSED:  # the engine may still be starting
            return ""
        return _message_of(error)
    except OSError:
        return ""
    except ValueError:
        return "it has characters that no token has"


def _message_of(error: urllib.error.HTTPError) -> str:
    """Return what an answer says of an error."""
    with error:
        try:
            return str(json.loads(error.read(_MAX_BODY_BYTES))["error"]["message"])
        except (ValueError, LookupError, TypeError):  # not the server's own words
            return f"HTTP status {error.code}"
