"""Replays typing through clients that send only a window of the document, and measures the prefix-cache hits of each.

An editor plugin may cut the text around the cursor itself. Then the start of what it sends moves: at each key if it
counts characters, at each new line if it sends whole lines, seldom if it keeps its start until the window is full. The
server's prompt library builds the prompts for all of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from loadtest.bench.prompt.keystrokes import typed
from loadtest.bench.prompt.replay import ReplayOptions
from loadtest.bench.runner.prompts import CursorText
from loadtest.traffic.documents import library_files

BEFORE_CHARS, AFTER_CHARS = 1500, 400
"""A window of the size that many plugins send."""
ANCHORED = "anchored"
_FILLED_SHARE = 0.7
"""Share of the window that an anchored client fills when it moves its start."""
_LEAST_SHARE = 0.4
"""An anchored client moves its start when less of the window than this share is left before the cursor."""
_MARK_CHARS = 64

Client = Callable[[CursorText], CursorText]
"""Returns what is sent of a document; each document has its own."""


class AnchoredClient:
    """Keeps the start of its window at one line until the window is full, and then moves it far."""

    def __init__(self, num_before: int, num_after: int) -> None:
        """Send at most `num_before` characters before the cursor and `num_after` after it."""
        self._num_before = num_before
        self._num_after = num_after
        self._start = 0
        self._mark = ""

    def __call__(self, state: CursorText) -> CursorText:
        """Return what is sent of the document."""
        prefix = state.prefix
        num_left = len(prefix) - self._start
        is_starved = self._start > 0 and num_left < self._num_before * _LEAST_SHARE
        if num_left > self._num_before or is_starved or not prefix.startswith(self._mark, self._start):
            least = max(0, len(prefix) - int(self._num_before * _FILLED_SHARE))
            self._start = prefix.rfind("\n", 0, least) + 1 if len(prefix) > self._num_before else 0
        if len(prefix) - self._start > self._num_before:  # a long line
            self._start = len(prefix) - self._num_before
        self._mark = prefix[self._start : self._start + _MARK_CHARS]
        return CursorText(prefix[self._start :], state.suffix[: self._num_after])


def characters_client(num_before: int, num_after: int) -> Client:
    """Return a client whose window slides by a character a key."""
    return lambda state: CursorText(state.prefix[-num_before:], state.suffix[:num_after])


def lines_client(num_before: int, num_after: int) -> Client:
    """Return a client that sends the whole lines among these characters."""

    def send(state: CursorText) -> CursorText:
        prefix, suffix = state.prefix[-num_before:], state.suffix[:num_after]
        if len(prefix) < len(state.prefix):
            prefix = prefix[prefix.find("\n") + 1 :]
        if len(suffix) < len(state.suffix):
            suffix = suffix[: suffix.rfind("\n") + 1] or suffix
        return CursorText(prefix, suffix)

    return send


_KINDS: Mapping[str, Callable[[int, int], Client]] = {
    ANCHORED: AnchoredClient,
    "by characters": characters_client,
    "by lines": lines_client,
}


def measure_clients(
    options: ReplayOptions, num_before: int = BEFORE_CHARS, num_after: int = AFTER_CHARS, keys_per_request: int = 1
) -> dict[str, Any]:
    """Replay the same typing through each kind of client and return the figures of each, by block size.

    `num_before` and `num_after` are the window's characters before and after the cursor. A client sends a request at
    each key, or at every `keys_per_request`th of so many times the keys.

    Raises:
        ConfigError: there is no such model, or the settings can't be used.

    """
    by_client: dict[str, dict[str, dict[str, float]]] = {}
    for name, make_client in _KINDS.items():
        maker, stats = options.prompt_maker(), options.layout_stats()
        for number, (path, text) in enumerate(library_files(options.files, options.seed).items()):
            send = make_client(num_before, num_after)
            states = typed(text, options.keys * keys_per_request, options.seed + number)
            for state in states[::keys_per_request]:
                sent = send(state)
                prompt, _ = maker.make(path, sent.prefix, sent.suffix, language_id="python")
                stats.add(prompt.token_ids)
        by_client[name] = {str(size): stats.figures(size) for size in options.sizes}
    for sizes in by_client.values():
        for size, found in sizes.items():
            anchored = by_client[ANCHORED][size]["prefilled_tokens_per_key"]
            found["prefilled_tokens_per_key_ratio_to_anchored"] = round(found["prefilled_tokens_per_key"] / anchored, 3)
    return {
        "characters_before": num_before,
        "characters_after": num_after,
        "keys_per_request": keys_per_request,
        "by_client": by_client,
    }
