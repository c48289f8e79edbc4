"""When a user types what is being generated for them, the work goes on: what fits, and what is left of it. Pure."""

from completion_server.core.request import Mode, Request

_SAME = ("document_uri", "language_id", "mode", "max_tokens", "sampling", "stop", "snippets", "suffix")


def typed_since(older: Request, newer: Request) -> str | None:
    """Return what was typed between two requests, "" where nothing was; None where they ask for different things."""
    if not newer.prefix.startswith(older.prefix):
        return None
    if newer.sampling.temperature and newer.sampling.seed is not None:
        return None  # a seed repeats an answer only if that begins at the request's own cursor
    if any(getattr(older, name) != getattr(newer, name) for name in _SAME):
        return None
    typed = newer.prefix[len(older.prefix) :]
    if older.mode is Mode.SINGLE_LINE and ("\n" in typed or "\r" in typed):
        return None  # what is generated ends with its line
    return typed


class Ahead:
    """What a user has typed that a generation has yet to say."""

    def __init__(self, typed: str) -> None:
        """Expect the generation to say `typed` first."""
        self._typed = typed
        self.has_parted = False
        """Whether it said something else."""

    @property
    def is_ahead(self) -> bool:
        """Whether there is still something that was typed and not said."""
        return bool(self._typed)

    def feed(self, text: str) -> str:
        """Take what the generation says next, and return what of it goes beyond what was typed."""
        typed = self._typed
        if self.has_parted:
            return ""
        if text.startswith(typed):
            self._typed = ""
            return text[len(typed) :]
        self.has_parted = not typed.startswith(text)
        self._typed = typed[len(text) :]
        return ""
