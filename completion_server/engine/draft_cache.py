"""Separates cached prompts that have draft KV from those that were computed while drafts were switched off. Pure."""

SEPARATED = "\0separated#"
"""Begins the salts of a caller that uses no salt both while drafts are on and while they are off. Metadata has no NUL
character, so no tenant's name begins so."""


class DraftCache:
    """Whether the draft model runs, and the cache salts that follow from it."""

    def __init__(self, *, has_kv: bool = True) -> None:
        """Begin with drafts that are on; drafts copied from the prompt have no KV."""
        self._has_kv = has_kv
        self._is_off = False
        self._epoch = 0
        """How often drafts were switched on again."""

    def switch(self, *, is_off: bool) -> None:
        """Switch drafts off or on."""
        self._epoch += self._has_kv and self._is_off and not is_off
        self._is_off = is_off

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now.

        While drafts are off, prompts may use all blocks; after they are switched on, only newer blocks.
        """
        return f"{cache_salt}#{self._epoch}" if self._epoch and not cache_salt.startswith(SEPARATED) else cache_salt
