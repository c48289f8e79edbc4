"""Calls and sessions with a token, against a server that wants one."""

import asyncio
import logging
from pathlib import Path

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    Endpoint,
    EndpointError,
    PermissionDeniedError,
    Regions,
    SessionSettings,
    Token,
    TokenRefusedError,
    UnauthenticatedError,
    blocking,
    tokens,
)
from completion_client.token_sources import TokenFile
from tests.support.guarded_replica import Guarded, run_guarded
from tests.support.replica_fakes import Clock, Losses, fake_replicas
from tests.support.server import eventually

REQUEST = pb.CompleteRequest(prefix="x = ")
QUICK = SessionSettings(backoff_min_s=0.01, backoff_max_s=0.02, backoff_seed="0")


def put(path: Path, text: str | None) -> None:
    """Write a file, or remove it."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "token"
    found.write_text("good")
    return found


async def test_calls_sessions_and_feedback_carry_the_token(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_guarded() as (server, _):
        async with CompletionClient(server.address, token=Token.of_file(path)) as client:
            assert (await client.complete(REQUEST)).text == "text"
            async with client.session() as session:
                assert (await session.complete(REQUEST)).text == "text"
            stream = client.stream(settings=QUICK)
            stream.report_nowait(pb.ReportFeedbackRequest(sequence=1))
            await eventually(lambda: ("report", 1) in server.seen)
            await asyncio.gather(*stream.close_nowait(), return_exceptions=True)
        async with CompletionClient(Endpoint(server.address, token=Token.of_text("good"))) as client:
            assert (await client.complete(REQUEST)).text == "text"
    assert server.presented == ["good"] * 4
    assert "good" not in caplog.text


async def test_a_blocking_call_carries_the_token_of_its_endpoint(path: Path) -> None:
    def ask(endpoint: Endpoint) -> str:
        with endpoint.open_channel() as channel:
            completion = blocking.complete(channel, REQUEST, timeout_s=10)
        return completion.text or str(completion.error)

    async with run_guarded() as (server, _):
        assert await asyncio.to_thread(ask, Endpoint(server.address, token=Token.of_file(path))) == "text"
        assert await asyncio.to_thread(ask, Endpoint(server.address, token=Token())) == "there is none"
        put(path, None)
        with pytest.raises(
            EndpointError, match=r"token: there is no token to send: the file .*token: it can't be read"
        ):
            await asyncio.to_thread(ask, Endpoint(server.address, token=Token.of_file(path)))


async def test_a_refused_call_is_sent_again_once_with_another_token(path: Path) -> None:
    async with run_guarded() as (server, _), CompletionClient(server.address, token=Token.of_file(path)) as client:
        await client.complete(REQUEST)
        server.tokens = {"new"}
        with pytest.raises(TokenRefusedError, match=r"refused the token of the file .*token: it is unknown") as caught:
            await client.complete(REQUEST)
        assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
        for _ in range(5):
            with pytest.raises(TokenRefusedError):
                await client.complete(REQUEST)
        assert server.presented == ["good", "good"], "the same token is not sent in a loop"
        put(path, "new")
        assert (await client.complete(REQUEST)).text == "text"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_session_that_is_refused_waits_until_the_token_is_another(
    path: Path, code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_LOOK_S", 0.02)
    clock, losses = Clock(), Losses()
    put(path, "bad")
    kind = PermissionDeniedError if code is grpc.StatusCode.PERMISSION_DENIED else TokenRefusedError
    async with (
        run_guarded() as (server, _),
        CompletionClient(server.address, token=Token(TokenFile(path), now=clock)) as client,
    ):
        server.status = code
        async with client.session(settings=QUICK, listener=losses) as session:
            await eventually(lambda: len(losses.errors) == 1)
            assert isinstance(losses.errors[0], kind)
            assert not session.is_connected
            with pytest.raises(ConnectionLostError, match="it is unknown"):
                session.submit_nowait(REQUEST)
            await asyncio.sleep(0.3)  # many times the back-off
            assert server.presented == ["bad"]
            assert len(losses.errors) == 1
            clock.now_s += 15.0
            await eventually(lambda: len(losses.errors) == 2)
            assert server.presented == ["bad", "bad"]
            put(path, "good")
            await eventually(lambda: session.is_connected)
            assert (await session.complete(REQUEST)).text == "text"


async def test_several_servers_that_refuse_are_not_asked_at_each_key(path: Path) -> None:
    put(path, "bad")
    servers = Guarded(), Guarded()
    async with fake_replicas(*servers):
        endpoints = [Endpoint(each.address) for each in servers]
        async with (
            CompletionClient(endpoints, token=Token.of_file(path)) as client,
            client.session(settings=QUICK) as session,
        ):
            with pytest.raises(UnauthenticatedError):
                await session.complete(REQUEST)
            await eventually(lambda: not session.is_connected)
            for _ in range(5):
                with pytest.raises(ConnectionLostError, match="refused the token"):
                    session.submit_nowait(REQUEST)
    assert sum(len(each.presented) for each in servers) <= 2


async def test_a_session_without_a_token_is_not_retried_in_a_loop() -> None:
    losses = Losses()
    async with (
        run_guarded() as (server, _),
        CompletionClient(server.address, user="ada") as client,
        client.session(settings=QUICK, listener=losses),
    ):
        await eventually(lambda: len(losses.errors) == 1)
        await asyncio.sleep(0.3)
    assert server.presented == [None]
    assert isinstance(losses.errors[0], UnauthenticatedError)
    assert not isinstance(losses.errors[0], TokenRefusedError)


@pytest.mark.parametrize("ends", ["while idle", "while a request has no text", "later"])
async def test_a_session_goes_on_with_the_next_token_without_a_loss(path: Path, ends: str) -> None:
    """Open requests end on the stream that they began on, unless the server ends that."""
    losses = Losses()
    async with (
        run_guarded() as (server, _),
        CompletionClient(server.address, token=Token.of_file(path)) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        await session.complete(REQUEST)
        server.tokens.add("new")
        server.may_answer.clear()
        pending = [] if ends == "while idle" else [session.submit_nowait(REQUEST)]
        await eventually(lambda: len(server.sequences("complete")) == 1 + len(pending))
        put(path, "new")
        if ends == "later":
            pending.append(session.submit_nowait(REQUEST))
        else:
            server.revoke("new")
        await eventually(lambda: server.presented == ["good", "new"])
        server.may_answer.set()
        assert {(await each.result()).text for each in pending} <= {"text"}
        assert (await session.complete(REQUEST)).text == "text"
    assert server.presented == ["good", "new"]
    assert losses.errors == []


async def test_requests_wait_for_a_command_that_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"sh -c 'while [ ! -e {go} ]; do sleep 0.05; done; echo good'"
    async with (
        run_guarded() as (server, _),
        CompletionClient(server.address, token=Token.of_command(command)) as client,
        client.session(settings=QUICK) as session,
    ):
        single = asyncio.create_task(client.complete(REQUEST))
        pending = session.submit_nowait(REQUEST)
        await asyncio.sleep(0.1)
        assert server.presented == []
        go.touch()
        assert [each.text for each in (await single, await pending.result())] == ["text", "text"]
    assert server.presented == ["good", "good"]


async def test_users_of_one_process_have_their_own_tokens() -> None:
    async with run_guarded() as (server, _), Regions(server.address) as regions:
        server.tokens = {"ada", "bob"}
        for name in ("ada", "bob", "eve"):
            async with CompletionClient(regions, user=name, token=Token.of_text(name)) as client:
                if name != "eve":
                    await client.complete(REQUEST)
                    continue
                with pytest.raises(TokenRefusedError, match="the token of the program's own settings"):
                    await client.complete(REQUEST)
        assert server.presented == ["ada", "bob", "eve"]
        with pytest.raises(EndpointError, match=r"is not sent to example.com:1 without TLS"):
            CompletionClient("example.com:1", token=Token.of_text("t"))
