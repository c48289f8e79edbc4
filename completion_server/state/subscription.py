"""Listens to a sharded Pub/Sub channel of Redis, and connects again whenever the connection fails."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from redis.asyncio.client import PubSub

from completion_server.core.process import raise_if_cancelled
from completion_server.state.clients import FAILURES, Client, make_listener
from completion_server.state.settings import RedisSettings

logger = logging.getLogger(__name__)

_PING_AFTER_S = 1.0
_MAX_UNANSWERED = 2
_CONNECT_S = 3.0
"""How long connecting may take: Sentinels, or nodes of a Cluster, are asked one after another."""


class ChannelSubscription:
    """Passes on the messages of one channel."""

    def __init__(
        self, settings: RedisSettings, client: Client, channel: str, on_message: Callable[[bytes], None]
    ) -> None:
        """Call `on_message` with the data of each message; it must neither wait nor raise."""
        self._settings = settings
        self._client = client
        self._channel = channel
        self._on_message = on_message
        self.is_listening = False
        """Whether messages arrive now."""
        self._is_failing = False
        """Whether a failure was logged since messages arrived."""

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._connect_and_listen()
            except FAILURES as error:
                self._failed(f"{type(error).__name__}: {error}")
            except Exception:  # a bug, in the library or here; requests must not suffer from it
                logger.exception("the subscription failed")
            finally:
                self.is_listening = False
            raise_if_cancelled()
            await asyncio.sleep(self._settings.retry_s)

    async def _connect_and_listen(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(_CONNECT_S):
                listener = await make_listener(self._settings, self._client, self._channel)
                await stack.enter_async_context(listener)
                pubsub = await stack.enter_async_context(listener.pubsub())
                await pubsub.ssubscribe(self._channel)
            await self._listen(pubsub)

    def _failed(self, reason: str) -> None:
        """Log the first failure alone: while Redis is away there is one for each attempt."""
        if not self._is_failing:
            logger.warning("not listening to other replicas: %s", reason)
        self._is_failing = True

    async def _listen(self, pubsub: PubSub) -> None:
        """Pass messages on until Redis moves the channel to another node. Raises one of `FAILURES` if Redis fails."""
        num_unanswered = 0
        while num_unanswered <= _MAX_UNANSWERED:
            raise_if_cancelled()
            message = await pubsub.get_message(timeout=_PING_AFTER_S)
            if message is None:
                num_unanswered += 1
                await pubsub.ping()
                continue
            num_unanswered = 0
            if message["type"] == "ssubscribe":
                self.is_listening, self._is_failing = True, False
            elif message["type"] == "smessage":
                self._on_message(message["data"])
            elif message["type"] == "sunsubscribe":
                return
        msg = f"{num_unanswered} pings were not answered"
        raise TimeoutError(msg)
