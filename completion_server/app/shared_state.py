"""Builds the parts that replicas share in Redis, and runs them. Part of the composition root."""

import asyncio
import dataclasses
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from completion_server import __version__
from completion_server.app.models import prompt_budget
from completion_server.config import Config
from completion_server.core.checks import DAY_S
from completion_server.core.clock import Clock
from completion_server.core.events import Emit, MissReason
from completion_server.core.outcome import CacheLevel
from completion_server.core.process import raise_if_cancelled
from completion_server.core.request import Request
from completion_server.engine.fingerprint import model_fingerprint
from completion_server.ops.metrics import Metrics
from completion_server.requests.isolation import Isolation
from completion_server.requests.limits.day_tokens import DayTokens
from completion_server.requests.scheduling.requests import LiveRequest
from completion_server.requests.service import Service
from completion_server.state.cache.cache import make_cache
from completion_server.state.cache.keys import CompletionKeys
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret, load_secret
from completion_server.state.shared_lanes import SharedLanes
from completion_server.state.store import CacheStatus, ReplicationStatus, Store, StoreUnavailableError
from completion_server.state.subscription import ChannelSubscription
from completion_server.text.prompt.builder import PromptBuilder

logger = logging.getLogger(__name__)

_RANDOM_BYTES = 4
_SECRET_BYTES = 32
_RESTART_S = 1.0
"""How long after an unexpected error a part runs again."""
_SUMS_EVERY_S = 1.0
_SUMS_KEPT_S = 2 * DAY_S
"""Longer than a day, for replicas whose clocks differ."""
_PATH_OPTIONS = frozenset({"download_dir"})
"""Options of vLLM that say where files are, not what is in them."""


class SharedState:
    """The parts of one server that work with other replicas, or alone if no Redis is configured.

    Implements `service.ReplicaGroup`.
    """

    def __init__(self, config: Config, clock: Clock, emit: Emit = lambda _event: None) -> None:
        """Build the parts; `run` connects them to Redis.

        Raises:
            ConfigError: the secret can't be used.

        """
        self._config = config
        self._clock = clock
        self._service: Service | None = None
        self.secret = load_secret(config.redis)
        self.isolation = Isolation(_isolation_secret(config, self.secret), config.engine.cache_scope)
        """Separates callers in all caches."""
        self.store: RedisStore | None = None
        self.lanes: SharedLanes | None = None
        self._subscription: ChannelSubscription | None = None
        self._day_sums: DaySums | None = None
        settings = dataclasses.replace(config.redis, replica_id=replica_id(config))
        if config.redis.addresses:
            self.store = RedisStore(settings, clock)
        self.cache = make_cache(config.cache, settings, self.secret, self.store, clock, emit, self._may_be_elsewhere)
        """Keeps completions once `know_model` was called; None if it is disabled."""
        if self.store is None:
            return
        self.lanes = SharedLanes(
            self.store,
            self.secret,
            clock,
            key_prefix=settings.key_prefix,
            supersede=self._supersede,
            live=self._live,
        )
        self._subscription = ChannelSubscription(settings, self.store.client, self.lanes.channel, self.lanes.receive)

    async def know_model(self, prompts: PromptBuilder) -> None:
        """Begin to keep completions: they belong to the model, which is loaded now, and to its prompts."""
        if self.cache is not None:
            keys = await asyncio.to_thread(_completion_keys, self._config, prompts, self.secret, self.isolation)
            self.cache.use_keys(keys)

    def serve(self, service: Service) -> None:
        """Have the requests of a service superseded by newer ones on other replicas."""
        self._service = service

    def add_up(self, tenant_days: DayTokens) -> None:
        """Add up the tokens of tenants over all replicas, if there is a Redis. Call it before `run`."""
        if self.store is not None:
            self._day_sums = DaySums(self.store, self.secret, self._config.redis.key_prefix, tenant_days)

    def stamp(self) -> int:
        """Return the time of a request that is accepted now, in nanoseconds on the host's clock; 0 without others."""
        return 0 if self.lanes is None else time.time_ns()

    def announce(self, live: LiveRequest) -> None:
        """Tell the other replicas of an accepted request. Returns at once."""
        if self.lanes is not None:
            self.lanes.announce(live.lane, live.stamp)

    async def run(self) -> None:
        """Keep the parts in step with the other replicas until cancelled."""
        found = (self.store, self.lanes, self._day_sums, self._subscription, self.cache)
        async with asyncio.TaskGroup() as group:
            for part in (part for part in found if part is not None):
                group.create_task(_keep_running(part), name=f"shared-{type(part).__name__}")

    def replication_status(self) -> ReplicationStatus | None:
        """Return what this replica knows of the others; None if no Redis is configured."""
        store, lanes = self.store, self.lanes
        if store is None or lanes is None or self._subscription is None:
            return None
        return ReplicationStatus(
            replica_id=store.settings.replica_id,
            is_redis_available=store.is_available,
            redis_failure=store.breaker.reason,
            num_outages=store.breaker.num_opened,
            is_listening=self._subscription.is_listening,
            num_received=lanes.num_received,
        )

    def cache_status(self, metrics: Metrics) -> CacheStatus | None:
        """Return the state of the completion cache; None if it is off."""
        if self.cache is None:
            return None
        hits, misses = metrics.counts("cache_hits"), metrics.counts("cache_misses")
        local, shared = (int(hits[level.value,]) for level in (CacheLevel.LOCAL, CacheLevel.SHARED))
        # Redis may have answered what the process's memory did not.
        num_missed = int(misses[CacheLevel.LOCAL.value, MissReason.ABSENT.value])
        return CacheStatus(self.cache.num_entries, self.cache.num_bytes, local, shared, max(0, num_missed - shared))

    def gauges(self) -> dict[str, Callable[[], float]]:
        """Return the gauges of the parts, by metric name; those of Redis only if one is configured."""
        store, lanes, cache = self.store, self.lanes, self.cache
        gauges: dict[str, Callable[[], float]] = {}
        if cache is not None:
            gauges = {"cache_bytes": lambda: cache.num_bytes, "cache_entries": lambda: cache.num_entries}
        subscription = self._subscription
        if store is None or lanes is None or subscription is None:
            return gauges
        return gauges | {
            "redis_available": lambda: store.is_available,
            "redis_listening": lambda: subscription.is_listening,
        }

    def counters(self) -> dict[str, Callable[[], float]]:
        """Return the counters of the parts, by metric name; none if no Redis is configured."""
        store, lanes = self.store, self.lanes
        if store is None or lanes is None:
            return {}
        return {
            "redis_outages": lambda: store.breaker.num_opened,
            "redis_commands": lambda: store.num_commands,
            "lane_messages_sent": lambda: lanes.num_sent,
            "lane_messages_received": lambda: lanes.num_received,
        }

    def _may_be_elsewhere(self, request: Request) -> bool:
        """Return whether Redis may have an answer to a request that this replica does not have."""
        config = self._config
        is_tracked = config.scheduling.supersede and config.scheduling.lane == "user"
        if self.lanes is None or not is_tracked or config.engine.cache_scope != "user":
            return True
        return config.cache.look_up == "always" or self.lanes.may_be_elsewhere(request.caller.owner)

    def _supersede(self, lane: str, stamp: int) -> None:
        if self._service is not None:
            self._service.runner.supersede_nowait(lane, stamp)

    def _live(self) -> Iterable[tuple[str, int]]:
        found = [] if self._service is None else self._service.known_to_replicas()
        return [(live.lane, live.stamp) for live in found]


class DaySums:
    """Exchanges what this replica has counted for the sums in Redis, once a second. No request waits for it."""

    def __init__(self, store: Store, secret: Secret, key_prefix: str, counts: DayTokens) -> None:
        """Add the changes of `counts` to the sums of all replicas, and let it learn these."""
        self._store = store
        self._secret = secret
        self._key_prefix = key_prefix
        self._counts = counts

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(_SUMS_EVERY_S)
            await self.exchange()

    async def exchange(self) -> None:
        """Add what was counted since the last exchange. What Redis does not take is added with the next one."""
        day, changes = self._counts.changes()
        sums = {key: self._add(f"{self._name(key)}:{day}", num_tokens) for key, num_tokens in changes.items()}
        for key, reply in sums.items():
            try:
                self._counts.learn(day, key, int(await reply))
            except StoreUnavailableError:
                self._counts.restore(day, key, changes[key])

    def _add(self, name: str, num_tokens: int) -> "asyncio.Future[int]":
        reply = self._store.call_nowait("INCRBY", name, num_tokens)
        self._store.call_nowait("EXPIRE", name, _SUMS_KEPT_S)
        return reply

    def _name(self, key: str) -> str:
        return f"{self._key_prefix}:tokens:{self._secret.name('day', key)}"


class _Part(Protocol):
    """A part that runs until cancelled."""

    async def run(self) -> None:
        """Run until cancelled."""


async def _keep_running(part: _Part) -> None:
    """Run a part until cancelled. An error in one, which is a bug, must not end the server: it needs none of them."""
    while True:
        try:
            await part.run()
        except Exception:
            logger.exception("%s failed, and runs again in %g s", type(part).__name__, _RESTART_S)
            raise_if_cancelled()
            await asyncio.sleep(_RESTART_S)
        else:
            return


def _isolation_secret(config: Config, secret: Secret) -> bytes:
    """Return the secret of salts: the same on all replicas that may share a cache, else this process's own."""
    if config.redis.addresses or config.redis.secret_file:
        return secret.derive("isolation")
    return secrets.token_bytes(_SECRET_BYTES)


def _completion_keys(config: Config, prompts: PromptBuilder, secret: Secret, isolation: Isolation) -> CompletionKeys:
    """Return the names of completions of the loaded model. They are the same on all replicas that serve it alike."""
    engine = config.engine
    try:
        model = model_fingerprint(engine.model, engine.revision, engine.vllm.get("download_dir"))
    except OSError as error:
        logger.warning("cached completions are not shared, because %s can't be read: %s", engine.model, error)
        model = secrets.token_hex()
    # Hosts may keep the same model in different folders.
    options = {name: value for name, value in engine.vllm.items() if name not in _PATH_OPTIONS}
    identity = (
        __version__,
        engine.kind,
        model,
        json.dumps(options, sort_keys=True, default=repr),
        repr(prompts.template),
        repr(config.prompt),
        str(prompt_budget(config)),
    )
    is_tenant_wide = engine.cache_scope == "tenant"
    keys = CompletionKeys(secret.derive("cache names"), identity, isolation.salt, is_tenant_wide=is_tenant_wide)
    logger.info("completions are kept under identity %s; replicas share those of the same identity", keys.identity_hash)
    return keys


def replica_id(config: Config) -> str:
    """Return the configured name, else one that survives a restart: the host's name and the port.

    A port that the system picks, or a Unix socket, tells nothing; the name has a random part then.
    """
    if config.redis.replica_id:
        return config.redis.replica_id
    port = config.server.listen.rpartition(":")[2]
    is_lasting = port.isdecimal() and int(port) > 0
    return f"{socket.gethostname()}-{port if is_lasting else secrets.token_hex(_RANDOM_BYTES)}"
