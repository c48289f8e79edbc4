"""The policy's client with one rule switched off or replaced, to show what the rule gains."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from completion_client.editing import Change, EditingSettings, Mode
from loadtest.simulation.patterns.policy import PolicyClient
from loadtest.simulation.patterns.port import Client, Document, Port

_DEFAULTS = EditingSettings()


class _WithoutBackoff(PolicyClient):
    def ended(self, number: int, reason: str, _retry_after_ms: float | None) -> None:
        super().ended(number, reason, 0.0)


class _AfterDeletion(PolicyClient):
    def changed(self, document: Document, change: Change) -> None:
        super().changed(document, Change.PASTED if change is Change.DELETED else change)


class _AlwaysSingle(PolicyClient):
    def mode_of(self, _mode: Mode) -> Mode:
        return Mode.SINGLE_LINE


class _AlwaysMulti(PolicyClient):
    def mode_of(self, _mode: Mode) -> Mode:
        return Mode.MULTI_LINE


def _with(**settings: float | bool) -> Callable[[Port], Client]:
    return lambda port: PolicyClient(port, replace(_DEFAULTS, **settings))  # type: ignore[arg-type]


ABLATIONS: Mapping[str, Callable[[Port], Client]] = {
    "typed_along": _with(types_along=False),
    "line": _with(minds_line=False),
    "memory": _with(num_answers=1),
    "deletion": lambda port: _AfterDeletion(port, _DEFAULTS),
    "block": lambda port: _AlwaysSingle(port, _DEFAULTS),
    "single_line": lambda port: _AlwaysMulti(port, _DEFAULTS),
    "rhythm": _with(follows_rhythm=False),
    "haste": _with(follows_rhythm=False, delay_min_ms=200),
    "cancel": _with(cancels=False),
    "back_off": lambda port: _WithoutBackoff(port, _DEFAULTS),
    "rejection": _with(num_rejections=0),
    "prefetch": _with(prefetches=False),
}
"""By what is missing. Without "memory" one answer is remembered, without "deletion" a deletion asks, too, without
"rhythm" there is never a wait, without "haste" always one of 200 ms."""
