"""Decides when a controller that wants no drafts has the draft model switched off, and for how long. Pure."""

_IDLE_S = 60.0
"""How long the controller must have chosen K = 0 for all batch sizes."""
_MIN_OFF_S = 600.0
"""How long drafts are first switched off; each time that they did not pay again doubles it."""
_MAX_OFF_S = 4 * 3600.0


class DraftRest:
    """The times without a draft model.

    Switching on again makes every prompt be computed anew once, so it is tried rarely.
    """

    def __init__(self) -> None:
        """Begin with drafts switched on."""
        self.is_off = False
        self._off_s = _MIN_OFF_S
        self._since: float | None = None
        """Since when K = 0 is chosen; while drafts are off, since when they are."""

    def switch_off(self, now: float) -> None:
        """Begin a time without drafts."""
        self.is_off, self._since = True, now

    def observe(self, largest_k: int, now: float) -> bool:
        """Take in the largest K that is chosen; return whether `is_off` has changed."""
        if self.is_off:
            assert self._since is not None
            if now - self._since < self._off_s:
                return False
            self.is_off, self._since, self._off_s = False, now, min(2 * self._off_s, _MAX_OFF_S)
            return True
        if largest_k > 0:
            self._since, self._off_s = None, _MIN_OFF_S
        elif self._since is None:
            self._since = now
        elif now - self._since >= _IDLE_S:
            self.switch_off(now)
        return self.is_off
