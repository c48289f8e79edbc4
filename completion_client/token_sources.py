"""Where a caller's token comes from: a text, an environment variable, a file or a command."""

import base64
import json
import math
import os
import shlex
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "COMPLETION_TOKEN"
"""The environment variable with a token."""
_ENDS_WITHIN_S = 1.0
"""How long the pipe of a command that was killed may stay open."""
MAX_TOKEN_BYTES = 16 * 1024
"""Of a file's content or of what a command prints."""


class SourceError(Exception):
    """A source has no token. The message says why, and never holds what the source had."""


@dataclass(frozen=True, slots=True)
class FixedToken:
    """A token that the program was given, or none."""

    where: str
    """Where it comes from, in words; "" for no token."""
    text: str = field(repr=False)

    def state(self) -> object:
        """Return what never changes."""
        return None

    def fetch(self) -> str:
        """Return the token. Raises SourceError if it is none."""
        return checked(self.text.encode()) if self.where else ""


NO_TOKEN = FixedToken("", "")
"""The source of a caller that has no token."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that holds a token alone. It is read again when it changes."""

    path: Path

    @property
    def where(self) -> str:
        """Where it comes from, in words."""
        return f"the file {self.path}"

    def state(self) -> object:
        """Return what differs once the file has changed; None if there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def fetch(self) -> str:
        """Return the token. A pipe is refused: it can't be read twice, and a read of it may wait.

        Raises SourceError if there is no file, or no token in it.
        """
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise SourceError("it is not a regular file")
            with self.path.open("rb") as file:
                return checked(file.read(MAX_TOKEN_BYTES + 1))
        except OSError as error:
            raise SourceError(f"it can't be read: {(error.strerror or str(error)).lower()}") from error


@dataclass(frozen=True, slots=True)
class TokenCommand:
    """A command that prints a token. It is run without a shell, and again before its token expires."""

    command: str = field(repr=False)
    ttl_s: float = 300.0
    """Seconds for which a token holds that names no time of its own."""
    limit_s: float = 10.0
    """How long the command may take."""

    @property
    def where(self) -> str:
        """Where it comes from, in words. Only the program is named: an argument may be a secret."""
        return f"the command {self._arguments()[0]}"

    def state(self) -> object:
        """Return what never changes: only running it can tell."""
        return None

    def fetch(self) -> str:
        """Return the token; waits. What the command writes to standard error is dropped: it may hold the token.

        Raises SourceError if it failed, took too long or printed no token.
        """
        arguments = self._arguments()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"it can't be run: {(error.strerror or str(error)).lower()}") from error
        output = _output(process, self.limit_s)
        if process.returncode:
            raise SourceError(f"it ended with status {process.returncode}; run it by hand to see why")
        return checked(output)

    def _arguments(self) -> list[str]:
        """Return the words of the command; `Token.of_command` has checked that there are any."""
        return shlex.split(self.command)


TokenSource = FixedToken | TokenFile | TokenCommand


def checked(raw: bytes) -> str:
    """Return a token without the white space around it.

    Raises SourceError if it is empty, too long, or no token: it has characters that metadata can't hold.
    """
    if len(raw) > MAX_TOKEN_BYTES:
        raise SourceError(f"it holds more than {MAX_TOKEN_BYTES // 1024} KiB")
    token = raw.decode("ascii", "replace").strip()
    if not token:
        raise SourceError("it is empty")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SourceError("it holds no token alone, which is one line of ASCII characters without blanks")
    return token


def expiry_of(token: str) -> float | None:
    """Return the Unix time at which a JWT expires, as it says itself; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, claims and signature
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        found = float(claims["exp"])
    except (ValueError, TypeError, KeyError, RecursionError):  # binascii's error is a ValueError
        return None
    return found if math.isfinite(found) else None


def _output(process: "subprocess.Popen[bytes]", limit_s: float) -> bytes:
    """Return what a process prints; end it with its children, which may hold the pipe open, if it takes too long.

    Raises SourceError if it took too long.
    """
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # its number is no other's: it has not been waited for
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_ENDS_WITHIN_S)
        raise SourceError(f"it did not end within {limit_s:g} s") from None
