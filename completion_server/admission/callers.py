"""Identifies the callers of one listener, whatever its transport, and turns those away that are refused too often."""

import asyncio

from completion_server.admission.entrance import Arrival, Entrance
from completion_server.admission.identity import Identity
from completion_server.admission.refusals import MAX_HOLD_S, Refusals
from completion_server.auth.principal import Scope
from completion_server.core.errors import CompletionError, Fault


class Callers:
    """The callers of one listener."""

    def __init__(self, entrance: Entrance, refusals: Refusals) -> None:
        """Let callers in by `entrance`; refused calls are charged to `refusals`."""
        self._entrance = entrance
        self.refusals = refusals

    @property
    def is_open(self) -> bool:
        """Whether authentication is off."""
        return self._entrance.is_open

    async def identify(self, arrival: Arrival, scope: Scope = Scope.COMPLETE) -> Identity:
        """Return the caller of a call, who may do what `scope` names.

        Raises:
            TooManyRefusalsError: it is over its budget of refused bytes; the wait before it slows the caller down.
            CompletionError: as `Entrance.identify`.

        """
        try:
            identity = await self._entrance.identify(arrival, scope)
        except CompletionError as error:
            if error.fault is Fault.CALLER:
                stranger = Identity("", "", arrival.connection, arrival.peer)
                await self._turn_away(stranger)
                self.refusals.charge(stranger, 0)
            raise
        await self._turn_away(identity)
        return identity

    def is_current(self, identity: Identity) -> bool:
        """Return whether a caller is still who it was: its credential is not revoked or expired."""
        return self._entrance.is_current(identity)

    async def _turn_away(self, identity: Identity) -> None:
        error = self.refusals.over_budget(identity)
        if error is not None:
            await asyncio.sleep(min(MAX_HOLD_S, (error.retry_after_ms or 0) / 1000))
            raise error
