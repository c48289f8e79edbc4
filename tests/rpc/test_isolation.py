"""Isolation of callers from each other, through the whole server and over real connections."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.api.callers import Callers, token_in
from completion_server.api.rpc.intake import identify, metadata_of, split_peer
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ServiceTimes
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings
from tests.support.models import TARGET
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    endless_engine,
    eventually,
    request,
    run_server,
)

CANARY = "sk-alice-CANARY"
SECRET = pb.ContextSnippet(uri="file:///keys.py", text=f"def keys():\n    key = '{CANARY}'\n    return key\n", score=1)
DOCUMENT = "import os\n\n\ndef main():\n    return os.environ\n\n\n"
ALICE = (("x-user-id", "alice"),)


class Generations(list[GenerationRequest]):
    """The script of an engine; records its requests."""

    def __call__(self, generation: GenerationRequest) -> list[str]:
        self.append(generation)
        return [" w"] * 1000 if generation.max_tokens == ENDLESS else ["alpha", "\n"]


@pytest.fixture
def generations() -> Generations:
    return Generations()


@asynccontextmanager
async def serving(generations: Generations, *settings: str) -> AsyncIterator[RunningServer]:
    config = endless_config("engine.heartbeat_s=0", *settings)
    async with run_server(config, lambda: endless_engine(generations, ServiceTimes(decode_base_s=0.005))) as running:
        yield running


@pytest_asyncio.fixture
async def server(generations: Generations) -> AsyncIterator[RunningServer]:
    async with serving(generations) as running:
        yield running


@asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[CompletionServiceStub]:
    """Give a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(server.ready.address, options=options) as channel:
        yield CompletionServiceStub(channel)


def num_superseded(server: RunningServer) -> float:
    return server.count("completion_requests_total", outcome="superseded", trigger="automatic", shed_reason="")


async def ask_on_stream(stub: CompletionServiceStub, message: pb.CompleteRequest) -> None:
    call = stub.Session()
    await call.write(pb.SessionRequest(complete=message))
    async for response in call:
        if response.HasField("end"):
            break
    await call.done_writing()
    await call.code()


@pytest.mark.parametrize("answer", [ask, ask_on_stream])
async def test_a_session_id_gives_no_access_to_anothers_text(
    server: RunningServer, generations: Generations, answer: Callable[..., Awaitable[object]]
) -> None:
    async with connected(server) as alice, connected(server) as other:
        for number, mallory in enumerate((alice, other)):
            messages = (
                request(f"{DOCUMENT}{number}x = ", snippets=[SECRET]),
                request(f"{DOCUMENT}{number}y = ", sequence=2),
            )
            for stub, message in zip((alice, mallory), messages, strict=True):
                message.session_id, message.document_uri = f"me{number}", "file:///a.py"
                await answer(stub, message)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompts = [tokenizer.decode(each.prompt_token_ids, skip_special_tokens=False) for each in generations]
    assert [CANARY in prompt for prompt in prompts] == [True, False] * 2


async def test_a_session_id_does_not_supersede_anothers_request_and_a_user_is_one_on_all_connections(
    server: RunningServer, generations: Generations
) -> None:
    endless = {"max_tokens": ENDLESS, "mode": pb.MODE_MULTI_LINE}
    async with connected(server) as one, connected(server) as other:
        call = one.Complete(request(session_id="me", **endless))
        await anext(aiter(call))
        for sequence in (2, 2**63):
            assert (await ask(other, request(session_id="me", sequence=sequence))).reason == "stop"
        assert num_superseded(server) == 0
        call.cancel()
        assert (await ask(one, request(session_id="me", sequence=3))).reason == "stop"
        generations.clear()
        named = one.Complete(request(session_id="a", **endless), metadata=ALICE)
        await anext(aiter(named))
        assert (await ask(other, request(session_id="b"), metadata=ALICE)).reason == "stop"
        await eventually(lambda: num_superseded(server) == 1)
    assert generations[0].cache_salt == generations[1].cache_salt


@pytest.mark.parametrize(("scope", "num_salts"), [("user", 4), ("tenant", 2)])
async def test_prompts_are_cached_apart_for_each_user_or_tenant(
    generations: Generations, scope: str, num_salts: int
) -> None:
    async with serving(generations, f"engine.cache_scope={scope}") as server:
        for user, tenant in (("alice", ""), ("bob", ""), ("alice", "acme"), ("", "")):
            metadata = tuple((key, name) for key, name in (("x-user-id", user), ("x-tenant-id", tenant)) if name)
            for sequence in (1, 2):
                await ask(server.stub, request(sequence=sequence), metadata=metadata)
    salts = [generation.cache_salt for generation in generations]
    assert salts[::2] == salts[1::2], "a caller has one salt"
    assert len(set(salts)) == num_salts


async def test_a_server_can_require_a_user_name(generations: Generations) -> None:
    async with serving(generations, "admission.require_user=true") as server:
        refused = await ask(server.stub, request())
        assert (refused.code, "x-user-id" in refused.details) == (grpc.StatusCode.UNAUTHENTICATED, True)
        assert await server.stub.Session().code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError, match="x-user-id"):
            await server.stub.ReportFeedback(pb.ReportFeedbackRequest(session_id="s"), timeout=5)
        assert (await ask(server.stub, request(), metadata=ALICE)).reason == "stop"


async def test_a_user_is_charged_for_computed_tokens_but_not_for_cached_ones(generations: Generations) -> None:
    long = "".join(f"value_{number} = {number}\n" for number in range(100))
    limits = ("admission.user_tokens_per_s=0.01", "admission.token_burst_s=100000")
    async with serving(generations, *limits) as server:

        async def reasons(user: str, prefixes: list[str]) -> list[str]:
            messages = (request(prefix, sequence=number) for number, prefix in enumerate(prefixes))
            return [(await ask(server.stub, each, metadata=(("x-user-id", user),))).reason for each in messages]

        heavy = [f"# {number}\n{long}" for number in range(4)]
        assert await reasons("heavy", heavy) == ["stop", "stop", "shed", "shed"]
        assert await reasons("light", ["x = "] * 10) == ["stop"] * 10
        assert await reasons("typing", [long + "x" * number for number in range(6)]) == ["stop"] * 6


class Call:
    """A call as gRPC describes it."""

    def __init__(self, peer: str, *metadata: tuple[str, str | bytes]) -> None:
        self.peer = lambda: peer
        self.auth_context = lambda: {"x509_pem_cert": (b"PEM",)}
        self.invocation_metadata = lambda: metadata


@pytest.mark.parametrize(
    ("peer", "connection", "address"),
    [
        ("ipv4:10.0.0.7:50312", "10.0.0.7:50312", "10.0.0.7"),
        ("ipv6:%5B2001:db8::7%5D:50312", "%5B2001:db8::7%5D:50312", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:7]:50313", "[2001:db8::ffff:7]:50313", "2001:db8::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:50312", "%5B::ffff:10.0.0.7%5D:50312", "10.0.0.7"),
        ("ipv6:%5Bfe80::7%25eth0%5D:50312", "%5Bfe80::7%25eth0%5D:50312", "fe80::/64"),
        ("unix:/run/completion.sock", "", ""),
        ("unknown", "", ""),
    ],
)
def test_a_peer_is_a_connection_and_an_address(peer: str, connection: str, address: str) -> None:
    assert split_peer(peer) == (connection, address)


async def test_user_and_tenant_names_come_from_the_metadata() -> None:
    async def caller_of(call: Call, **settings: bool) -> Caller:
        return await identify(Callers(AdmissionSettings(**settings), LimitSettings()), call)

    call = Call("ipv4:10.0.0.7:1", ("x-user-id", "alice"), ("x-tenant-id", b"acme"), ("other", "x"))
    assert (await caller_of(call)).in_session("s") == Caller("alice", "s", "acme", "10.0.0.7:1", "10.0.0.7")
    assert (await caller_of(call, trust_user_names=True)).is_verified
    assert not (await caller_of(Call("unix:"), trust_user_names=True)).is_verified
    with pytest.raises(InvalidRequestError, match="x-user-id: must be at most 128 bytes, got 129"):
        await caller_of(Call("unix:", ("x-user-id", "a" * 129)))


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ((("authorization", "bearer  one "), ("x-api-key", "two")), "one"),
        ((("authorization", "Basic one"), ("x-api-key", "two")), "two"),
        ((("authorization", "one"),), ""),
    ],
)
def test_a_call_brings_a_token(metadata: tuple[tuple[str, str], ...], token: str) -> None:
    assert token_in(metadata_of(Call("ipv4:10.0.0.7:1", *metadata))) == token


def test_owners_differ_by_address_session_tenant_and_name() -> None:
    owners = [
        Caller("", "me", "", "10.0.0.7:1"),
        Caller("", "me", "", "10.0.0.7:2"),
        Caller("", "you", "", "10.0.0.7:1"),
        Caller("", "me", "acme", "10.0.0.7:1"),
        Caller("me", "me", "", "10.0.0.7:1", "10.0.0.7"),
        Caller("alice", "s", "", "10.0.0.7:1", "10.0.0.7"),
        Caller("alice", "s", "", "10.0.0.8:1", "10.0.0.8"),  # an unverified name is another user elsewhere
        Caller("", "me"),
        Caller("me", "x"),
        *(Caller().on_stream("me") for _ in range(2)),  # streams of a Unix socket are told apart, calls can't be
    ]
    assert all(one.owner != other.owner for one, other in itertools.combinations(owners, 2))
    *_, here, there = owners[:7]
    assert here.owner == replace(here, connection="10.0.0.7:2", session="t").owner
    assert replace(here, is_verified=True).owner == replace(there, is_verified=True).owner
    assert (Caller().in_session("me").memory, owners[-1].memory == owners[-2].memory) == (None, False)
