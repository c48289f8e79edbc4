"""The command `completion-lsp`."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from completion_client import Endpoint, EndpointError, Token, parse_endpoints
from completion_client.endpoint import DEFAULT_PORT, caller_metadata, with_port
from completion_client.token_sources import VARIABLE
from completion_lsp import __version__
from completion_lsp.link import Servers

_DESCRIPTION = """\
Brings the completions of a completion server to an editor, as a language server on standard input and output.

The editor starts it. First try it by hand:

  completion-lsp --server 127.0.0.1:50051 --check
"""
_EPILOG = """\
examples of what an editor starts:
  completion-lsp --server 127.0.0.1:50051
  completion-lsp --server us.example.com:443,eu.example.com:443 --tls-ca ca.pem --user ada
      The nearest server is asked, and another one while that can't be reached.
  completion-lsp --server eu.example.com:443 --tls-ca ca.pem --token-file ~/.config/completion/token
      A token is sent only with TLS, or to this machine.

settings of the editor, as initializationOptions or as the section "completion" of its configuration:
  {"enabled": true, "languagesOff": ["markdown"], "multiLine": true, "delayMs": null, "timeoutMs": 5000,
   "exclude": ["*.secret", "private/*"]}
      A delayMs of null follows the user's rhythm. Files with secrets by their names (.env, keys) are never sent.

Settings for Neovim, Helix, Emacs, JetBrains, Sublime, Kate and Zed are in docs/lsp.md.
"""
_FLAGS = {
    "address": "--server",
    "ca": "--tls-ca",
    "certificate": "--tls-cert",
    "key": "--tls-key",
    "user": "--user",
    "tenant": "--tenant",
    "token": f"--token-file, --token-command or {VARIABLE}",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; exits with status 0, 1 if `--check` finds no server that answers, or 2 for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        _log_to(options.log_file)
        addresses = [with_port(each.address) for each in parse_endpoints(options.server)]
        tls, token = (options.tls_ca, options.tls_cert, options.tls_key), _token(options)
        endpoints = [Endpoint(each, *tls, token) for each in addresses]
        caller_metadata(options.user, options.tenant)
    except EndpointError as error:
        parser.error(f"{_FLAGS.get(error.field, error.field)}: {error.problem}")
    except ValueError as error:
        parser.error(f"--token-command: {str(error).lower()}")
    except OSError as error:
        parser.error(f"--log-file: {options.log_file} can't be written: {error.strerror}")
    servers = Servers(endpoints, options.user, options.tenant)
    if options.check:
        from completion_lsp.check import check

        works, report = asyncio.run(check(servers))
        sys.stdout.write(f"{report}\n")
        sys.exit(0 if works else 1)
    from completion_lsp.server import CompletionLanguageServer

    CompletionLanguageServer(servers).start_io()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "completion-lsp", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server",
        default=os.environ.get("COMPLETION_SERVER_ADDRESS") or f"127.0.0.1:{DEFAULT_PORT}",
        metavar="ADDRESS",
        help="HOST[:PORT] or unix:PATH; several with commas between them. Default: the variable "
        f"COMPLETION_SERVER_ADDRESS, else 127.0.0.1:{DEFAULT_PORT}",
    )
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="encrypt; check the server's certificate by this")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="the client's certificate, if it needs one")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"the token that says who you are, if the server wants one. Default: the variable {VARIABLE}",
    )
    token.add_argument(
        "--token-command",
        metavar="COMMAND",
        help="a command that prints the token, run without a shell and again before the token expires",
    )
    parser.add_argument("--user", help="who types; the server keeps one live request for each user")
    parser.add_argument("--tenant", help="the user's organisation")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="log here, not to stderr; there is no code in it")
    parser.add_argument("--check", action="store_true", help="say whether a server answers and what would be shown")
    parser.add_argument("--stdio", action="store_true", help="accepted, as some editors add it: there is no other way")
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def _token(options: argparse.Namespace) -> Token:
    """Return the token of the options, else that of the environment, which may be none. Raises ValueError."""
    if options.token_file is not None:
        return Token.of_file(options.token_file)
    if options.token_command is not None:
        return Token.of_command(options.token_command)
    return Token.of_environment()


def _log_to(path: Path | None) -> None:
    """Log this package alone: pygls writes messages with the user's code into its log."""
    handler = logging.FileHandler(path) if path else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("completion_lsp", "completion_client"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("pygls").setLevel(logging.CRITICAL + 1)
