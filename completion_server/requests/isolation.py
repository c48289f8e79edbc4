"""Separates the callers that share no cache: makes the salt of a caller's prompts. Pure.

The salt is an HMAC of the caller's user or tenant, so it has a fixed length, it is never a name that a client sent, and
nobody without the server's secret can make one. Kept completions and shared generations are separated by it, too.
"""

import hmac
from functools import lru_cache

from completion_server.core.request import Caller
from completion_server.engine.settings import CacheScope

SALT_DIGITS = 32
"""Hexadecimal digits of a salt: 128 bits."""
_MAX_KEPT = 4096
"""Salts that are kept, those of the callers that were seen last. Making one takes microseconds."""


class Isolation:
    """Makes the salts of callers with one secret."""

    def __init__(self, secret: bytes, scope: CacheScope = "user") -> None:
        """Share caches within `scope`. Servers that share a cache need the same secret."""
        self._is_tenant_wide = scope == "tenant"

        def make(owner: str) -> str:
            # The scope is a part of the message: no tenant has the salt of a user.
            return hmac.digest(secret, f"{scope}:{owner}".encode(), "sha256").hex()[:SALT_DIGITS]

        self._salt_of = lru_cache(_MAX_KEPT)(make)

    def salt(self, caller: Caller) -> str:
        """Return the salt under which a caller's prompts share entries of the prefix cache.

        With a common salt, the number of cached tokens and the time to a first token would reveal to callers the text
        that others have open. A name that nothing trusted vouches for counts only at its network address, also that of
        a tenant.
        """
        return self._salt_of(caller.tenant_key if self._is_tenant_wide else caller.owner)
