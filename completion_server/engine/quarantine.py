"""Refuses prompts that make the engine fail repeatedly. Pure: the caller gives the time.

A prompt is a suspect if the engine failed while it was computed. A suspect is admitted only if no other suspect runs,
so that the next failure has one suspect. A suspect that was being computed at a second failure is refused for
`quarantine_s`, and for twice as long after each further failure. A suspect is cleared after it had an output and the
engine survived it.

This guarantees that other callers are served again after the second failure, however often the same prompt is sent. Two
prompts are different if one token differs.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from completion_server.core.errors import SuspectedPromptError, UnavailableError

_MAX_SUSPECTS = 1024
_MAX_UNPROVEN = 256
"""Limit for generations that ended since the last output. The oldest ones are kept: only a prompt that was in the
engine before it hung can be the cause."""

_RETRY_AFTER_MS = 1000


@dataclass(slots=True, eq=False)
class AdmittedPrompt:
    """One prompt in the engine."""

    token_ids: Sequence[int]
    key: bytes = b""
    """Identifies a suspect prompt; empty if there were no suspects when it was admitted."""
    has_output: bool = False


@dataclass(slots=True)
class _Suspect:
    num_failures: int = 0
    refused_until: float = 0.0
    forgotten_at: float = 0.0


class Quarantine:
    """Tracks the prompts that the engine computes, and those that it was computing at a failure."""

    def __init__(self, quarantine_s: float) -> None:
        """Refuse prompts for `quarantine_s` at first; 0 refuses none."""
        self._quarantine_s = quarantine_s
        self._suspects: OrderedDict[bytes, _Suspect] = OrderedDict()
        self._open: set[AdmittedPrompt] = set()
        self._unproven: list[AdmittedPrompt] = []
        """Prompts that ended since the engine's last output. There is no evidence that the engine survived them."""

    def enter(self, token_ids: Sequence[int], now: float) -> AdmittedPrompt:
        """Admit a prompt. Its `leave` must follow.

        Raises:
            SuspectedPromptError: the engine failed more than once while it computed this prompt.
            UnavailableError: the engine failed once while it computed this prompt, and another such prompt runs.

        """
        entry = AdmittedPrompt(token_ids)
        if self._suspects:
            entry.key = _digest(token_ids)
            self._check(entry.key, now)
        self._open.add(entry)
        return entry

    def output_received(self, entry: AdmittedPrompt | None = None) -> None:
        """Record an output of a prompt, or of a heartbeat: the engine has survived the prompts that ended before."""
        if self._unproven:
            for survived in self._unproven:
                self._clear(survived)
            self._unproven.clear()
        if entry is not None:
            entry.has_output = True

    def last_output_received(self, entry: AdmittedPrompt) -> None:
        """Record the last output of a prompt's generation: the engine no longer computes it."""
        self._open.discard(entry)
        self._clear(entry)

    def leave(self, entry: AdmittedPrompt) -> None:
        """Record the end of a generation, with or without an error."""
        if entry in self._open:
            self._open.remove(entry)
            if len(self._unproven) < _MAX_UNPROVEN:
                self._unproven.append(entry)

    def engine_failed(self, now: float) -> None:
        """Suspect every prompt that the engine was computing."""
        if self._quarantine_s:
            for key in {entry.key or _digest(entry.token_ids) for entry in (*self._unproven, *self._open)}:
                self._suspect(key, now)
        self._unproven.clear()
        self._open.clear()

    def _clear(self, entry: AdmittedPrompt) -> None:
        if entry.key and entry.has_output:
            self._suspects.pop(entry.key, None)

    def _suspect(self, key: bytes, now: float) -> None:
        suspect = self._suspects.setdefault(key, _Suspect())
        suspect.num_failures += 1
        if suspect.num_failures > 1:
            suspect.refused_until = now + self._quarantine_s * 2 ** (suspect.num_failures - 2)
        suspect.forgotten_at = max(now, suspect.refused_until) + self._quarantine_s
        self._suspects.move_to_end(key)
        if len(self._suspects) > _MAX_SUSPECTS:
            self._suspects.popitem(last=False)

    def _check(self, key: bytes, now: float) -> None:
        suspect = self._suspects.get(key)
        if suspect is None:
            return
        if now >= suspect.forgotten_at:
            del self._suspects[key]
        elif now < suspect.refused_until:
            wait_s = suspect.refused_until - now
            msg = (
                f"the engine failed {suspect.num_failures} times while it computed this prompt, which is suspected of "
                f"stopping it; it is refused for another {ceil(wait_s)} s"
            )
            raise SuspectedPromptError(msg, retry_after_ms=ceil(1000 * wait_s))
        elif any(entry.key != key and entry.key in self._suspects for entry in (*self._unproven, *self._open)):
            msg = "the engine failed while it computed this prompt and others; they are tried one at a time"
            raise UnavailableError(msg, retry_after_ms=_RETRY_AFTER_MS)


def _digest(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("I", token_ids).tobytes(), digest_size=16).digest()
