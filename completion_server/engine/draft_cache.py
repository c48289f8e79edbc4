"""Separates cached prompts that have draft KV from those that were computed while drafts were switched off. Pure."""


class DraftCache:
    """Whether the draft model runs, and the cache salts that follow from it."""

    def __init__(self) -> None:
        """Begin with a draft model that runs."""
        self._is_off = False
        self._epoch = 0
        """How often drafts were switched on again."""

    def switch(self, *, is_off: bool) -> None:
        """Switch drafts off or on."""
        self._epoch += self._is_off and not is_off
        self._is_off = is_off

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now.

        While drafts are off, prompts may use all blocks; after they are switched on, only newer blocks.
        """
        return f"{cache_salt}#{self._epoch}" if self._epoch else cache_salt
