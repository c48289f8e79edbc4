"""The command `playground`."""

import sys
import urllib.error
import urllib.request
import webbrowser

import click

DEFAULT_URL = "http://127.0.0.1:8012/"
_TIMEOUT_S = 5.0
_TITLE = b"<title>completion-server playground</title>"


@click.command()
@click.option(
    "--url", default=DEFAULT_URL, envvar="COMPLETION_SERVER_URL", show_default=True, show_envvar=True,
    help="Where the server's HTTP listener is: server.http_listen.",
)  # fmt: skip
@click.option("--open/--no-open", "opens", default=True, help="Whether to open a browser.  [default: open]")
def playground(url: str, *, opens: bool) -> None:
    """Print the address of a running server's page, an editor with completions and live figures, and open it.

    \b
    Start a server first: make serve, or
        completion-server serve --config server.toml --set server.http_listen=127.0.0.1:8012
    """
    if fault := _fault(url):
        click.echo(f"Error: {fault}", err=True)
        sys.exit(1)
    click.echo(url)
    if opens:
        webbrowser.open(url)


def _fault(url: str) -> str:
    """Return why there is no page at a URL; "" if there is one."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            if _TITLE in response.read(10_000):
                return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers with HTTP status {error.code}: it is no completion-server, or an older one"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"no server answers at {url} ({reason}); start one: make serve"
    return f"{url} is no page of a completion-server"
