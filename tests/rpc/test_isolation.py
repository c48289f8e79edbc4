"""Isolation of callers from each other, through the whole server and over real connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.admission.callers import Callers, token_in
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.rpc.metadata import identify, metadata_of, split_peer
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


class RecordedGenerations(list[GenerationRequest]):
    """The script of an engine; records its requests."""

    def __call__(self, generation: GenerationRequest) -> list[str]:
        self.append(generation)
        return [" w"] * 1000 if generation.max_tokens == ENDLESS else ["alpha", "\n"]

    @property
    def prompts(self) -> list[str]:
        tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
        return [tokenizer.decode(generation.prompt_token_ids, skip_special_tokens=False) for generation in self]


@pytest.fixture
def generations() -> RecordedGenerations:
    return RecordedGenerations()


@pytest_asyncio.fixture
async def server(generations: RecordedGenerations) -> AsyncIterator[RunningServer]:
    def make_engine() -> ScriptedEngine:
        return endless_engine(generations, ServiceTimes(decode_base_s=0.005))

    async with run_server(endless_config("engine.heartbeat_s=0"), make_engine) as running:
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


@pytest.mark.parametrize("uses_stream", [False, True])
@pytest.mark.parametrize("shares_connection", [False, True])
async def test_a_session_id_gives_no_access_to_anothers_text(
    server: RunningServer, generations: RecordedGenerations, uses_stream: bool, shares_connection: bool
) -> None:
    async with connected(server) as alice, connected(server) as other:
        mallory = alice if shares_connection else other
        for stub, message in (
            (alice, request(DOCUMENT + "x = ", session_id="me", document_uri="file:///a.py", snippets=[SECRET])),
            (mallory, request(DOCUMENT + "y = ", session_id="me", sequence=2, document_uri="file:///a.py")),
        ):
            if uses_stream:
                await ask_on_stream(stub, message)
            else:
                await ask(stub, message)
    assert [CANARY in prompt for prompt in generations.prompts] == [True, False]


@pytest.mark.parametrize("sequence", [2, 2**63])
async def test_a_session_id_does_not_supersede_anothers_request(server: RunningServer, sequence: int) -> None:
    async with connected(server) as alice, connected(server) as mallory:
        call = alice.Complete(request(session_id="me", max_tokens=1000, mode=pb.MODE_MULTI_LINE))
        await anext(aiter(call))
        assert (await ask(mallory, request(session_id="me", sequence=sequence))).reason == "stop"
        assert num_superseded(server) == 0
        call.cancel()
        assert (await ask(alice, request(session_id="me", sequence=3))).reason == "stop"


async def test_a_user_is_one_user_on_all_its_connections(
    server: RunningServer, generations: RecordedGenerations
) -> None:
    named = (("x-user-id", "alice"),)
    async with connected(server) as one, connected(server) as other:
        call = one.Complete(request(session_id="a", max_tokens=ENDLESS, mode=pb.MODE_MULTI_LINE), metadata=named)
        await anext(aiter(call))
        assert (await ask(other, request(session_id="b"), metadata=named)).reason == "stop"
        await eventually(lambda: num_superseded(server) == 1)
    assert generations[0].cache_salt == generations[1].cache_salt


@pytest.mark.parametrize(("scope", "num_salts"), [("user", 4), ("tenant", 2)])
async def test_prompts_are_cached_apart_for_each_user_or_tenant(
    generations: RecordedGenerations, scope: str, num_salts: int
) -> None:
    config = endless_config("engine.heartbeat_s=0", f"engine.cache_scope={scope}")
    async with run_server(config, lambda: endless_engine(generations, ServiceTimes())) as server:
        for user, tenant in (("alice", ""), ("bob", ""), ("alice", "acme"), ("", "")):
            metadata = tuple((key, name) for key, name in (("x-user-id", user), ("x-tenant-id", tenant)) if name)
            for sequence in (1, 2):
                await ask(server.stub, request(sequence=sequence), metadata=metadata)
    salts = [generation.cache_salt for generation in generations]
    assert salts[::2] == salts[1::2], "a caller has one salt"
    assert len(set(salts)) == num_salts


async def test_a_server_can_require_a_user_name(generations: RecordedGenerations) -> None:
    config = endless_config("engine.heartbeat_s=0", "admission.require_user=true")
    async with run_server(config, lambda: endless_engine(generations, ServiceTimes())) as server:
        refused = await ask(server.stub, request())
        assert refused.code is grpc.StatusCode.UNAUTHENTICATED
        assert "x-user-id" in refused.details
        assert await server.stub.Session().code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError, match="x-user-id"):
            await server.stub.ReportFeedback(pb.ReportFeedbackRequest(session_id="s"), timeout=5)
        assert (await ask(server.stub, request(), metadata=(("x-user-id", "alice"),))).reason == "stop"


async def test_a_user_is_charged_for_computed_tokens_but_not_for_cached_ones(generations: RecordedGenerations) -> None:
    limits = ("admission.user_tokens_per_s=0.01", "admission.token_burst_s=100000", "engine.heartbeat_s=0")
    long = "".join(f"value_{number} = {number}\n" for number in range(100))
    async with run_server(endless_config(*limits), lambda: endless_engine(generations, ServiceTimes())) as server:

        async def reasons(user: str, prefixes: list[str]) -> list[str]:
            metadata = (("x-user-id", user),)
            messages = (request(prefix, sequence=number) for number, prefix in enumerate(prefixes))
            return [(await ask(server.stub, message, metadata=metadata)).reason for message in messages]

        heavy = [f"# {number}\n{long}" for number in range(4)]
        assert await reasons("heavy", heavy) == ["stop", "stop", "shed", "shed"]
        assert await reasons("light", ["x = "] * 10) == ["stop"] * 10
        assert await reasons("typing", [long + "x" * number for number in range(6)]) == ["stop"] * 6


class Call:
    """A call as gRPC describes it."""

    def __init__(self, peer: str, *metadata: tuple[str, str | bytes]) -> None:
        self._peer, self._metadata = peer, metadata

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_pem_cert": (b"PEM",)}

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


@pytest.mark.parametrize(
    ("peer", "connection", "address"),
    [
        ("ipv4:10.0.0.7:50312", "10.0.0.7:50312", "10.0.0.7"),
        ("ipv6:%5B2001:db8::7%5D:50312", "%5B2001:db8::7%5D:50312", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:7]:50313", "[2001:db8::ffff:7]:50313", "2001:db8::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:50312", "%5B::ffff:10.0.0.7%5D:50312", "10.0.0.7"),
        ("ipv6:%5B::1%5D:50312", "%5B::1%5D:50312", "::/64"),
        ("ipv6:%5Bfe80::7%25eth0%5D:50312", "%5Bfe80::7%25eth0%5D:50312", "fe80::/64"),
        ("unix:", "", ""),
        ("unix:/run/completion.sock", "", ""),
        ("unix-abstract:completion", "", ""),
        ("unknown", "", ""),
    ],
)
def test_a_peer_is_a_connection_and_an_address(peer: str, connection: str, address: str) -> None:
    assert split_peer(peer) == (connection, address)


async def caller_of(call: Call, **settings: bool) -> Caller:
    return await identify(Callers(AdmissionSettings(**settings), LimitSettings()), call, metadata_of(call))


async def test_user_and_tenant_names_come_from_the_metadata() -> None:
    call = Call("ipv4:10.0.0.7:1", ("x-user-id", "alice"), ("x-tenant-id", b"acme"), ("other", "x"))
    assert (await caller_of(call)).in_session("s") == Caller("alice", "s", "acme", "10.0.0.7:1", "10.0.0.7")
    assert (await caller_of(call, trust_user_names=True)).is_verified
    assert not (await caller_of(Call("unix:"), trust_user_names=True)).is_verified
    with pytest.raises(InvalidRequestError, match="x-user-id: must be at most 128 bytes, got 129"):
        await caller_of(Call("unix:", ("x-user-id", "a" * 129)))


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ((("authorization", "Bearer one"),), "one"),
        ((("authorization", "bearer  one "), ("x-api-key", "two")), "one"),
        ((("authorization", "Basic one"), ("x-api-key", "two")), "two"),
        ((("authorization", "one"),), ""),
        ((), ""),
    ],
)
def test_a_call_brings_a_token(metadata: tuple[tuple[str, str], ...], token: str) -> None:
    assert token_in(metadata_of(Call("ipv4:10.0.0.7:1", *metadata))) == token


def test_streams_of_a_unix_socket_are_different_owners() -> None:
    local = Caller()
    one, other = local.on_stream("me"), local.on_stream("me")
    assert one.owner != other.owner
    assert one.memory != other.memory
    assert local.in_session("me").owner == local.in_session("me").owner, "calls can't be"
    assert local.in_session("me").memory is None


def test_an_unverified_name_is_another_user_at_another_address() -> None:
    here, there = (Caller("alice", "s", "", f"{peer}:1", peer) for peer in ("10.0.0.7", "10.0.0.8"))
    assert here.owner != there.owner
    assert here.owner == replace(here, connection="10.0.0.7:2", session="t").owner
    assert replace(here, is_verified=True).owner == replace(there, is_verified=True).owner


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Caller("", "me", "", "10.0.0.7:1"), Caller("", "me", "", "10.0.0.7:2")),
        (Caller("", "me", "", "10.0.0.7:1"), Caller("", "you", "", "10.0.0.7:1")),
        (Caller("", "me", "", "10.0.0.7:1"), Caller("", "me", "acme", "10.0.0.7:1")),
        (Caller("", "me", "", "10.0.0.7:1"), Caller("me", "me", "", "10.0.0.7:1")),
        (Caller("", "me"), Caller("me", "x")),
    ],
    ids=["connection", "session", "tenant", "a name", "a name on a Unix socket"],
)
def test_a_session_id_is_no_user_name_and_owners_differ(one: Caller, other: Caller) -> None:
    assert one.owner != other.owner
