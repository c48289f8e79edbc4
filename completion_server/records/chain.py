"""The hash chain of the audit log. Pure.

A line is a JSON object that begins with its number and the hash of the line before, and ends with its own hash, of all
bytes between. So a changed, missing, added or moved line breaks the chain from there on. A cut end breaks nothing: keep
the number and the hash that `audit verify` prints last, to notice one. With a secret the hashes are HMACs, so that
whoever can write the file can't make a new chain.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from completion_server.records.reading import Line

START = "0" * 64
"""The hash before the first line."""
RECOVERED = "recovered"
"""The kind of the record that follows a line that a crash cut."""
_HASH = b',"hash":"'
_END = re.compile(rb',"hash":"(sha256|hmac-sha256):([0-9a-f]{64})"\}\Z')


@dataclass(frozen=True, slots=True)
class ChainState:
    """Where a chain ends."""

    sequence: int = 0
    """Number of the last line; 0 before the first."""
    hash: str = START


class NoLineError(ValueError):
    """Bytes have not the form of a line, whoever wrote them."""


class Sealer:
    """Makes the lines of a chain, and checks them."""

    def __init__(self, secret: bytes = b"") -> None:
        """Seal with a secret; b"" for plain hashes."""
        self._secret = secret
        self.algorithm = "hmac-sha256" if secret else "sha256"

    def seal(self, state: ChainState, record: dict[str, Any]) -> tuple[bytes, ChainState]:
        """Return the line of a record, with its end, and the state after it."""
        sequence = state.sequence + 1
        linked = {"seq": sequence, "prev": state.hash, **record}
        body = json.dumps(linked, separators=(",", ":")).encode()[:-1]
        digest = self._digest(body)
        return b'%s%s%s:%s"}\n' % (body, _HASH, self.algorithm.encode(), digest.encode()), ChainState(sequence, digest)

    def open(self, data: bytes) -> tuple[dict[str, Any], ChainState]:
        """Return the record of a line, with its number and the hash before, and the state after it.

        Raises:
            NoLineError: it is no line of a chain.
            ValueError: it was changed, or has another seal.

        """
        found = _END.search(data)
        if found is None:
            raise NoLineError("is no line of an audit log")
        algorithm, digest = found[1].decode(), found[2].decode()
        if algorithm != self.algorithm:
            msg = f"is sealed with {algorithm}, not with {self.algorithm} (--secret-file)"
            raise ValueError(msg)
        if not hmac.compare_digest(self._digest(data[: found.start()]), digest):
            raise ValueError("was changed: its hash is another one")
        try:
            record = json.loads(data)
            return record, ChainState(int(record["seq"]), digest)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise NoLineError("is no line of an audit log") from error

    def _digest(self, body: bytes) -> str:
        if self._secret:
            return hmac.digest(self._secret, body, hashlib.sha256).hex()
        return hashlib.sha256(body).hexdigest()


@dataclass(slots=True)
class Verification:
    """What a check of some files has found."""

    first: int = 0
    """Number of the first line; 0 if there is none."""
    state: ChainState = field(default_factory=ChainState)
    recovered: list[str] = field(default_factory=list)
    """Places of the records after cut lines."""
    broken: str = ""
    """FILE:LINE of the first broken line, and what is wrong with it; "" if the chain is intact."""


def verify(sealer: Sealer, lines: Iterable[Line]) -> Verification:
    """Check lines, in their order, up to the first broken one. The first has any number: older ones may be gone."""
    found = Verification()
    for line in lines:
        try:
            if line.fault:
                raise ValueError(line.fault)
            record, state = sealer.open(line.data)
            if found.first and state.sequence != found.state.sequence + 1:
                msg = f"has the number {state.sequence} after {found.state.sequence}: lines are missing, or were moved"
                raise ValueError(msg)
            is_linked = found.first or state.sequence == 1
            if is_linked and record.get("prev") != found.state.hash:
                raise ValueError("does not follow the line before: that was replaced")
        except ValueError as error:
            found.broken = f"{line.place}: {error}"
            return found
        found.first = found.first or state.sequence
        found.state = state
        if record.get("kind") == RECOVERED:
            found.recovered.append(line.place)
    return found
