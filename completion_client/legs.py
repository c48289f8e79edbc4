"""The streams of a session: the current leg to the best server, and former ones until their requests have ended.

The first request after a change opens the new leg and travels with it, so a move costs no round trip.
"""

import asyncio
import random
from contextlib import suppress

from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, PermissionDeniedError, ServiceError, UnauthenticatedError
from completion_client.open_request import RequestOwner
from completion_client.replicas import Move, OnMove, Replicas
from completion_client.session_settings import Backoff, SessionSettings, StreamListener
from completion_client.session_stream import SessionStream

_REFUSED = UnauthenticatedError, PermissionDeniedError
_MS_PER_S = 1000


class Legs:
    """Opens and ends the legs of one session, and replaces the current one when it is lost."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        settings: SessionSettings,
        listener: StreamListener | None,
        on_move: OnMove | None,
        owner: RequestOwner,
    ) -> None:
        """Open none yet; `on_move` gets each change to another server, `owner` what becomes of requests."""
        self._replicas = replicas
        self._metadata = metadata
        self._settings = settings
        self._listener = listener
        self._on_move = on_move
        self.owner = owner
        self._backoff = Backoff(settings)
        self._random = random.Random(settings.backoff_seed)
        self._loop = asyncio.get_running_loop()
        self.current: SessionStream | None = None
        """None while the stream is lost, or after a quiet end. If its server is silent, it gets no new request."""
        self._former: set[SessionStream] = set()
        self.endpoint = replicas.best()
        """The server of the current leg, or of the last one."""
        self._lost_at_s: float | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_dropping = self._is_closing = False

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        if self._lost_at_s is None and not (self.current is not None and self.current.is_silent):
            return True
        best = self._replicas.best()
        return self._replicas.has_choice and self._replicas.is_usable(best) and not self._replicas.token(best).problem

    def for_next(self) -> SessionStream | None:
        """Return the leg for the next request, on the best server; None if no server can be used."""
        for _ in self._replicas.regions.endpoints:
            with suppress(ConnectionLostError):  # that endpoint is passed over from now on
                return None if self._is_closing else self._best()
        return self._speaking()

    def open(self, endpoint: Endpoint) -> SessionStream:
        """Open a leg, which is the current one then. The one before ends with its last request.

        Raises ConnectionLostError if a PEM file of the endpoint can't be read.
        """
        before, replicas = self.current, self._replicas
        connection = replicas.connection(endpoint)
        leg = SessionStream(self, replicas, connection, self._metadata, self._settings, self._lost_at_s)
        self.current = leg
        if self._on_move is not None and endpoint != self.endpoint:
            self._on_move(Move(self.endpoint, endpoint, replicas.why_not(self.endpoint)))
        self.endpoint = endpoint
        if before is not None:
            self._former.add(before)
            self.tidy(before)
        return leg

    def to(self, endpoint: Endpoint | None) -> SessionStream | None:
        """Return a leg to a server, the current one first; None if there is none."""
        return next((each for each in reversed(self._all()) if each.endpoint == endpoint), None)

    def tidy(self, leg: SessionStream) -> None:
        """End a former leg that has no request any more."""
        if leg in self._former and not leg.num_open:
            self._end(leg)

    def drop_nowait(self, error: ServiceError) -> None:
        """Lose all legs with an error, and open another on a new connection after the back-off."""
        self._is_dropping = True
        self._replicas.disconnect()
        try:
            for leg in self._all():
                leg.drop_nowait(error)
        finally:
            self._is_dropping = False

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End all legs, and open no other; return the tasks that end with them, for the caller to await."""
        self._is_closing = True
        if self._reopening is not None:
            self._reopening.cancel()
            self._ending.add(self._reopening)
        for leg in self._all():
            self._ending.update(leg.close_nowait())
        self.current = None
        self._former.clear()
        return list(self._ending)

    def leg_ended(self, leg: SessionStream, error: ServiceError) -> None:
        """Take the end of a leg. Each of its requests fails next."""
        is_current = leg is self.current
        self._end(leg)
        if is_current:
            self.current = None
        if leg.is_quiet:
            leg.may_retry = True
            if is_current and isinstance(error, _REFUSED):
                with suppress(ConnectionLostError):
                    self.open(leg.endpoint)  # with a token that is fetched anew
            return
        if not self._is_dropping:
            leg.may_retry = self._replicas.note_error(leg.connection, error)
        if is_current:
            self._note_lost(leg, error)

    def note_answer(self) -> None:
        """Note that a server answered a request: the next loss is the first."""
        self._backoff.reset()

    def leg_accepted(self, leg: SessionStream, away_s: float) -> None:
        """Take the first sign of a server on a leg that replaces a lost one."""
        if leg is self.current:
            self._lost_at_s = None
            if self._listener is not None:
                self._listener.on_reconnected(away_s)

    def _note_lost(self, leg: SessionStream, error: ServiceError) -> None:
        is_first_loss = self._lost_at_s is None or leg.was_connected
        if self._lost_at_s is None:  # else this leg replaced one that was lost, but was never accepted
            self._lost_at_s = self._loop.time()
        if self._listener is not None and is_first_loss:
            self._listener.on_lost(error)
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.create_task(self._reopen(leg.endpoint, error))

    def _all(self) -> tuple[SessionStream, ...]:
        return (*self._former, *([self.current] if self.current else []))

    def _speaking(self) -> SessionStream | None:
        """Return the current leg unless its server is silent."""
        return None if self.current is None or self.current.is_silent else self.current

    def _best(self) -> SessionStream | None:
        replicas, leg = self._replicas, self._speaking()
        best, is_lost = replicas.best(), self.current is None and self._lost_at_s is not None
        if is_lost and (not replicas.has_choice or replicas.token(best).problem):
            return None  # the back-off decides when to try again
        is_held = leg is not None and replicas.regions.connections.holds(leg.connection)
        if leg is not None and is_held and leg.endpoint == best and not leg.is_outdated:
            return leg
        if self.current is None and not replicas.has_choice:
            return self.open(best)
        has_nothing_to_lose = leg is None and (self.current is not None or replicas.connection(best).is_ready)
        return self.open(best) if replicas.is_usable(best) or has_nothing_to_lose else leg

    def _end(self, leg: SessionStream) -> None:
        self._former.discard(leg)
        for task in leg.close_nowait():
            self._ending.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        """Forget a task that has ended well; `close_nowait` returns the others."""
        if task.cancelled() or task.exception() is None:
            self._ending.discard(task)

    async def _reopen(self, lost: Endpoint, error: ServiceError) -> None:
        """Open a leg for a session that has nothing to send; its next request opens one at once."""
        retry_after_s = (error.retry_after_ms or 0) / _MS_PER_S
        if self._replicas.has_choice and self._replicas.best() != lost:
            retry_after_s = self._random.uniform(0, self._replicas.regions.settings.move_spread_s)
        if isinstance(error, _REFUSED):
            retry_after_s = 0.0
            await self._replicas.token(lost).until_usable()
        while self.current is None:
            await asyncio.sleep(retry_after_s + self._backoff.next_s())
            retry_after_s = 0.0
            with suppress(ConnectionLostError):
                endpoint = await self._replicas.first_connected()
                if self.current is None:
                    self.open(endpoint)
