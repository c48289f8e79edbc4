"""Both levels together, with a store that replies when it is told to, and on a real Redis."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from completion_server.core.events import CacheHit, CacheMiss, CacheReplied, Event, MissReason
from completion_server.core.outcome import CachedAnswer, CacheLevel, FinishReason
from completion_server.core.request import Caller, Request, Sampling, Snippet
from completion_server.state.cache.cache import Lookup, TwoLevelCache, make_cache
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.settings import CacheSettings, RedisSettings
from tests.support.cancels import cancel_and_wait
from tests.support.clocks import ManualClock
from tests.support.constants import with_constants
from tests.support.redis_servers import RedisServer
from tests.support.server import eventually
from tests.unit.state.cache.cache_parts import (
    REQUEST,
    SECRET,
    FakeStore,
    Received,
    answer_of,
    make_keys,
    request_of,
)
from tests.unit.state.stores import running_store

STOP = FinishReason.STOP
REMOTE = RedisSettings(("redis.example:6379",), secret_file="secret")
LOCAL = RedisSettings(("127.0.0.1:6379",))


class Replica:
    """The cache of one server."""

    def __init__(
        self,
        store: FakeStore | RedisStore | None = None,
        *,
        redis: RedisSettings = REMOTE,
        secret: bytes = SECRET,
        shared: bool = True,
        **constants: float,
    ) -> None:
        self.clock = ManualClock(1000.0)
        self.events: list[Event] = []
        cache = make_cache(
            with_constants(CacheSettings(shared=shared), **constants),
            redis,
            Secret(secret),
            store,
            self.clock,
            self.events.append,
        )
        assert cache is not None
        self.cache: TwoLevelCache = cache
        self.cache.use_keys(make_keys(secret=secret))

    def look_up(self, request: Request) -> Lookup:
        lookup = self.cache.look_up_nowait(request)
        assert lookup is not None
        return lookup

    def answer(self, prefix: str, **fields: object) -> str | None:
        answer = self.look_up(request_of(prefix, **fields)).answer
        return None if answer is None else answer.text

    def misses(self) -> Sequence[MissReason]:
        """Return the reasons of level 2's misses."""
        return [each.reason for each in self.events if isinstance(each, CacheMiss) and each.level is CacheLevel.SHARED]


def test_an_answer_after_a_reattach_is_kept_where_its_generation_began() -> None:
    replica = Replica()
    replica.look_up(request_of("a = foo(b, c")).keep(answer_of(")", num_typed=len("oo(b, c")))
    assert replica.answer("a = f") == "oo(b, c)"
    assert replica.answer("a = foo(") == "b, c)"
    replica.look_up(request_of("if x:\n  y")).keep(answer_of(" = 1", num_typed=len("\n  y")))
    assert replica.answer("if x:") == "\n  y = 1"


def test_what_an_answer_saved_is_reported() -> None:
    replica = Replica()
    replica.look_up(request_of("d")).keep(answer_of("ef "))
    replica.clock.at += 3.0
    assert replica.answer("de") == "f "
    hit = replica.events[-1]
    assert isinstance(hit, CacheHit)
    assert (hit.level, hit.num_prompt_tokens, hit.num_completion_tokens) == (CacheLevel.LOCAL, 100, 13)
    assert hit.age_s == pytest.approx(3.0)
    assert hit.engine_s == pytest.approx(0.5 * 2 / 3)
    assert replica.events[:-1] == [CacheMiss(CacheLevel.LOCAL, MissReason.ABSENT)]


def test_nothing_is_kept_before_the_model_is_known_or_for_samples() -> None:
    cache = TwoLevelCache(CacheSettings(), ManualClock(), lambda _event: None)
    assert cache.look_up_nowait(REQUEST) is None
    assert Replica().cache.look_up_nowait(request_of("x", sampling=Sampling(1.0))) is None
    assert make_cache(CacheSettings(enabled=False), LOCAL, Secret(SECRET), None, ManualClock(), print) is None


async def keep_in(store: FakeStore, prefix: str = "def ", text: str = "main():", **settings: object) -> Replica:
    """Keep a completion on one replica, and return it."""
    replica = Replica(store, **settings)  # type: ignore[arg-type]
    replica.look_up(request_of(prefix)).keep(answer_of(text))
    await store.reply()
    return replica


async def fetch_from(
    store: FakeStore, prefix: str, *, after_s: float = 0.0, is_used: bool = True, **options: object
) -> tuple[Replica, list[CachedAnswer]]:
    """Look a request up on another replica, whose Redis replies after some seconds."""
    replica, received = Replica(store, **options), Received(is_used)  # type: ignore[arg-type]
    lookup = replica.look_up(request_of(prefix))
    assert lookup.answer is None
    lookup.fetch_nowait(received)
    replica.clock.at += after_s
    await store.reply()
    return replica, received.answers


async def test_another_replica_answers_from_redis_and_then_from_its_memory() -> None:
    store = FakeStore()
    await keep_in(store)
    replica, answers = await fetch_from(store, "def ma", after_s=0.004)
    assert answers == [CachedAnswer("in():", STOP, CacheLevel.SHARED, 100, 14)]
    replied, hit = replica.events[1:]
    assert replied == CacheReplied(pytest.approx(0.004))
    assert isinstance(hit, CacheHit)
    assert (hit.level, hit.num_completion_tokens) == (CacheLevel.SHARED, 14)
    assert replica.answer("def mai") == "n():"
    sent = [command[0] for command in store.commands]
    assert sent == ["SET", "GET"]  # what came from the cache is not written again


@pytest.mark.parametrize(
    ("prefix", "options", "reason"),
    [
        ("def ", {"after_s": 0.006}, MissReason.LATE),
        ("def ", {"is_used": False}, MissReason.UNUSED),
        ("def mo", {}, MissReason.ABSENT),  # other text behind the same anchor
        ("x = ", {}, MissReason.ABSENT),
        ("def ", {"secret": b"s" * 32}, MissReason.ABSENT),  # it also has another name
    ],
)
async def test_a_reply_without_an_answer_is_counted_by_its_reason(
    prefix: str, options: dict[str, Any], reason: MissReason
) -> None:
    store = FakeStore()
    await keep_in(store)
    replica, answers = await fetch_from(store, prefix, **options)
    assert (len(answers), replica.misses()) == (reason is MissReason.UNUSED, [reason])
    if reason is MissReason.LATE:
        assert replica.answer(prefix) == "main():"


@pytest.mark.parametrize("damage", [lambda value: value[:-1], lambda _: b"", lambda value: bytes(len(value))])
async def test_damaged_values_are_no_answer(damage: Callable[[bytes], bytes]) -> None:
    store = FakeStore()
    await keep_in(store)
    store.values = {key: damage(value) for key, value in store.values.items()}
    replica, answers = await fetch_from(store, "def ")
    assert (answers, replica.misses()) == ([], [MissReason.UNDECODABLE])


async def test_a_store_that_fails_is_a_miss() -> None:
    store = FakeStore()
    await keep_in(store)
    store.fails = True
    failing, answers = await fetch_from(store, "def ")
    assert (answers, failing.misses()) == ([], [MissReason.UNAVAILABLE])
    failing.look_up(request_of("y")).keep(answer_of("z"))
    await store.reply()
    store.is_available, num_commands = False, len(store.commands)
    away, answers = await fetch_from(store, "def ")
    assert (answers, away.misses()) == ([], [MissReason.UNAVAILABLE])
    away.look_up(request_of("y")).keep(answer_of("z"))
    await store.reply()
    assert len(store.commands) == num_commands


async def test_nothing_is_sent_for_callers_that_no_other_replica_has() -> None:
    store = FakeStore()
    replica, nobody = Replica(store), Caller("", "s", connection="c", stream=1)
    lookup = replica.look_up(request_of("x", caller=nobody))
    lookup.fetch_nowait(Received())
    lookup.keep(answer_of("y"))
    await store.reply()
    assert store.commands == []
    assert replica.answer("x", caller=nobody) == "y"


async def test_the_same_answer_is_written_once() -> None:
    store = FakeStore()
    replica = Replica(store)
    for _ in range(3):
        replica.look_up(request_of("x")).keep(answer_of("y"))
    replica.look_up(request_of("x")).keep(answer_of("z"))
    await store.reply()
    assert [command[0] for command in store.commands] == ["SET", "SET"]


@pytest.mark.parametrize("redis", [REMOTE, LOCAL])
async def test_values_are_encrypted_wherever_redis_is(redis: RedisSettings) -> None:
    store = FakeStore()
    await keep_in(store, text="CANARY", redis=redis)
    ((key, value),) = store.values.items()
    assert b"CANARY" not in value
    assert key.startswith("completion:cache:")


async def test_redis_drops_values_after_their_time_and_need_not_be_used() -> None:
    store = FakeStore()
    await keep_in(store, shared_ttl_s=1.5)
    assert store.commands[0][3:] == ("PX", 1500)
    unshared = FakeStore()
    await keep_in(unshared, shared=False)
    assert unshared.commands == []


async def test_expired_completions_are_freed_without_a_request() -> None:
    replica = Replica(local_ttl_s=0.01)
    replica.look_up(request_of("x")).keep(answer_of("y"))
    replica.clock.at += 1.0
    sweeping = asyncio.create_task(replica.cache.run())
    await eventually(lambda: not replica.cache.num_entries)
    assert replica.cache.num_bytes == 0
    await cancel_and_wait(sweeping)


CANARY = "CANARY_TEXT"
USER = "canary-user"
CANARY_REQUEST = request_of(
    f"{CANARY} = 1\n{CANARY}",
    suffix=f"\n{CANARY}",
    document_uri=f"file:///{CANARY}",
    snippets=(Snippet(CANARY, CANARY),),
    caller=Caller(USER, USER, USER, is_verified=True),
)


async def kept_key(replica: Replica, store: RedisStore) -> bytes:
    """Keep an answer, and return its key in Redis."""
    replica.look_up(CANARY_REQUEST).keep(answer_of(CANARY))
    keys: list[bytes] = []

    async def has_keys() -> bool:
        keys[:] = await store.call_nowait("KEYS", f"{store.settings.key_prefix}:cache:*")
        return bool(keys)

    await eventually(has_keys)
    (key,) = keys
    return bytes(key)


async def test_redis_holds_no_text_and_no_names(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        redis = replace(LOCAL, key_prefix=store.settings.key_prefix)
        key = await kept_key(Replica(store, redis=redis), store)
        value = await store.call_nowait("GET", key)
        assert 0 < await store.call_nowait("PTTL", key) <= 60_000
        for canary in (CANARY, USER):
            assert canary.encode() not in value
            assert canary.lower() not in key.decode().lower()


async def test_a_value_of_another_type_is_a_miss(redis_server: RedisServer) -> None:
    async with running_store(redis_server.address) as store:
        redis = replace(LOCAL, key_prefix=store.settings.key_prefix)
        key = await kept_key(Replica(store, redis=redis), store)
        await store.call_nowait("DEL", key)
        await store.call_nowait("LPUSH", key, "x")
        replica, received = Replica(store, redis=redis), Received()
        replica.look_up(CANARY_REQUEST).fetch_nowait(received)
        await eventually(lambda: replica.misses() == [MissReason.UNAVAILABLE])
        assert received.answers == []
