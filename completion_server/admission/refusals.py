"""Charges refused messages to the connection and the address that sent them, and refuses senders over their budget."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from completion_server.admission.identity import Identity
from completion_server.admission.quotas import RefusalBudget
from completion_server.admission.settings import AdmissionSettings
from completion_server.core.errors import InvalidRequestError, TooManyRefusalsError

_PEER_REFUSALS = 8
"""The budget of refused bytes of an address, in budgets of one connection."""
MAX_HOLD_S = 1.0
"""Maximum delay of the refusal of a call whose connection is over its budget. Meanwhile the call counts against those
of its connection, which slows down a client that retries at once."""


def refusal_budgets(settings: AdmissionSettings) -> tuple[RefusalBudget, RefusalBudget]:
    """Return the budgets of each connection and of each address."""
    rate, burst = settings.refused_bytes_per_s, settings.refused_burst_bytes
    return RefusalBudget(rate, burst), RefusalBudget(_PEER_REFUSALS * rate, _PEER_REFUSALS * burst)


class Refusals:
    """The refused bytes of the callers of one listener."""

    def __init__(self, budget: RefusalBudget, peer_budget: RefusalBudget, now: Callable[[], float]) -> None:
        """`budget` is for each connection, `peer_budget` for each address, because a client can replace its connection.

        `now` returns the time in seconds.
        """
        self._budget = budget
        self._peer_budget = peer_budget
        self._now = now

    def charge(self, identity: Identity, num_bytes: int) -> None:
        """Charge a refused message. On a Unix socket connections can't be told apart, so none is charged."""
        now = self._now()
        if identity.source:
            self._budget.charge(identity.source, num_bytes, now)
        if peer := identity.limited_peer:
            self._peer_budget.charge(peer, num_bytes, now)

    def over_budget(self, identity: Identity) -> TooManyRefusalsError | None:
        """Return the error to refuse a caller with if it is over its budget, else None.

        What strangers at its address have sent does not count against a verified user.
        """
        now = self._now()
        wait_s = self._budget.wait_s(identity.source, now)
        if peer := identity.limited_peer:
            wait_s = max(wait_s, self._peer_budget.wait_s(peer, now))
        if not wait_s:
            return None
        msg = "too many bytes of this connection or address were refused (admission.refused_bytes_per_s)"
        return TooManyRefusalsError(msg, retry_after_ms=math.ceil(wait_s * 1000))

    @contextmanager
    def charging(self, identity: Identity, num_bytes: int) -> Iterator[None]:
        """Charge a message of `num_bytes` if it is refused inside the `with` block."""
        try:
            yield
        except InvalidRequestError:
            self.charge(identity, num_bytes)
            raise
