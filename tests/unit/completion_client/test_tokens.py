"""Tokens by themselves: their sources, when they are fetched again, and what follows a refusal."""

import asyncio
import base64
import json
import shlex
import sys
from pathlib import Path

import pytest

from completion_client import Endpoint, EndpointError, Token, TokenError, TokenRefusedError, UnauthenticatedError
from completion_client.endpoint import is_loopback, with_token
from completion_client.token_sources import (
    FixedToken,
    SourceError,
    TokenCommand,
    TokenFile,
    checked,
    expiry_of,
)
from tests.support.replica_fakes import Clock
from tests.support.server import eventually

SECRET = "tok-5ecret"
WHY = UnauthenticatedError("it is revoked")
WAIT_S = 15.0


def jwt(expires_at_s: object) -> str:
    """Return a token with an expiry, which nobody has signed."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at_s}).encode()).decode().rstrip("=")
    return f"e30.{claims}.sig"


def printing(path: Path) -> str:
    """Return a command that prints a file, and counts its runs beside it."""
    script = path.with_suffix(".py")
    script.write_text(
        f"open({str(path) + '.runs'!r}, 'a').write('x')\nprint(open({str(path)!r}).read())\n", encoding="utf-8"
    )
    return shlex.join((sys.executable, str(script)))


def num_runs(path: Path) -> int:
    return len(Path(f"{path}.runs").read_text())


def python(code: str, limit_s: float = 60.0) -> TokenCommand:
    return TokenCommand(shlex.join((sys.executable, "-c", code)), limit_s=limit_s)


def test_nothing_shows_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    for token in (Token.of_text(SECRET), Token.of_file(path), Token.of_command(f"echo {SECRET}")):
        assert token.get_blocking() == SECRET
        refusal = token.refusal(WHY)
        shown = f"{token!r} {token.where} {vars(token)} {Endpoint('localhost:1', token=token)!r} {refusal}"
        assert SECRET not in shown
        assert token.where in str(refusal)
    assert repr(FixedToken("here", SECRET)) == "FixedToken(where='here')"
    assert Token.of_command(f"echo {SECRET}").where == "the command echo"


def test_what_is_no_token_is_refused_without_its_text() -> None:
    for raw, said in (
        (b" \n", "it is empty"),
        (b"a b", "it holds no token alone"),
        (b"a\nb", "it holds no token alone"),
        ("José".encode(), "it holds no token alone"),
        (b"x" * (16 * 1024 + 1), "it holds more than 16 KiB"),
    ):
        with pytest.raises(SourceError, match=said):
            checked(raw)
    assert checked(b"  t\r\n") == "t"


def test_a_source_that_fails_says_why(tmp_path: Path) -> None:
    for source, said in (
        (TokenFile(tmp_path / "none"), "can't be read: no such file or directory"),
        (TokenFile(tmp_path), "not a regular file"),
        (TokenCommand("/nowhere/vault read"), "can't be run: no such file or directory"),
        (python("import sys; print('secret', file=sys.stderr); sys.exit(3)"), "ended with status 3; run it by hand"),
        (python("print('x' * 100_000)"), "it holds more than 16 KiB"),
        (python("pass"), "it is empty"),
    ):
        with pytest.raises(SourceError, match=said) as caught:
            source.fetch()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import os, time; print('t', flush=True); os.close(1); time.sleep(600)",
        "import subprocess; print('t'); subprocess.Popen(['sleep', '600'])",
    ],
    ids=["it hangs", "it goes on", "a child holds its output"],
)
def test_a_command_has_a_time_limit(code: str) -> None:
    with pytest.raises(SourceError, match="it did not end within 0"):
        python(code, 0.5).fetch()


def test_the_expiry_of_a_jwt_alone_is_known() -> None:
    assert expiry_of(jwt(1e9)) == 1e9
    for other in (SECRET, "a.b.c", "..", jwt("soon"), jwt(float("inf")), jwt(None), f"e30.{'WyJ' * 9}.s"):
        assert expiry_of(other) is None


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = Token.of_file(path)
    assert token.at_hand() == "one"
    (tmp_path / "next").write_text("other\n")
    (tmp_path / "next").replace(path)
    assert token.at_hand() == "other"
    path.write_text("")
    assert token.at_hand() == "other", "a file that is being written leaves the token that was good"
    path.unlink()
    assert token.at_hand() == "other"


async def test_a_file_that_comes_ends_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = Token(TokenFile(path), now=Clock())
    with pytest.raises(TokenError, match=r"there is no token to send: the file .*token: it can't be read") as caught:
        await token.get()
    assert caught.value.retry_after_ms == WAIT_S * 1000
    path.write_text("t")
    assert await token.get() == "t"


async def test_a_command_runs_once_for_all_and_again_before_the_expiry(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock(1_000.0)
    path.write_text(jwt(1_600))
    token = Token(TokenCommand(printing(path)), now=clock)
    assert token.at_hand() is None
    assert set(await asyncio.gather(*(token.get() for _ in range(20)))) == {jwt(1_600)}
    clock.now_s = 1_539.0
    assert token.at_hand() == jwt(1_600)
    assert num_runs(path) == 1
    path.write_text(jwt(2_200))
    clock.now_s = 1_541.0
    assert token.at_hand() == jwt(1_600), "the present token serves while the next one is fetched"
    await eventually(lambda: token.at_hand() == jwt(2_200))
    path.write_text("")  # the command fails from now on
    clock.now_s = 2_150.0
    assert token.at_hand() == jwt(2_200)
    await eventually(lambda: num_runs(path) == 3)
    assert await token.get() == jwt(2_200)
    clock.now_s = 2_201.0
    with pytest.raises(TokenError, match=r"there is no token to send: the command .*: it is empty"):
        await token.get()


async def test_a_token_without_an_expiry_is_fetched_after_its_time_and_once_after_a_refusal(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one")
    token = Token(TokenCommand(printing(path)), now=clock)
    await token.get()
    path.write_text("two")
    clock.now_s = 299.0
    assert await token.get() == "one"
    clock.now_s = 300.0
    await eventually(lambda: token.at_hand() == "two")
    path.write_text("three")
    token.refused("two", WHY)
    token.refused("two", WHY)  # of a call at the same time
    assert await token.get() == "three"
    token.refused("three", WHY)
    with pytest.raises(TokenRefusedError, match=r"refused the token of the command .*: it is revoked"):
        await token.get()
    assert num_runs(path) == 3


async def test_refusals_wait_longer_and_longer(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one")
    token = Token(TokenFile(path), now=clock)
    token.refused(await token.get(), WHY)
    waits_s = []
    for _ in range(7):
        with pytest.raises(TokenRefusedError, match=r"refused the token of the file .*token: it is revoked") as caught:
            await token.get()
        assert caught.value.retry_after_ms is not None
        waits_s.append(caught.value.retry_after_ms / 1000)
        clock.now_s += waits_s[-1]
        assert token.problem == ""
        token.refused(await token.get(), WHY)  # it is sent again after the wait
    assert waits_s == [15, 30, 60, 120, 240, 300, 300]
    assert "it is revoked" in token.problem
    path.write_text("another")
    assert await token.get() == "another", "another token is sent at once"
    token.refused("another", WHY)
    with pytest.raises(TokenRefusedError) as caught:
        await token.get()
    assert caught.value.retry_after_ms == WAIT_S * 1000, "its waits begin anew"


async def test_a_token_that_is_accepted_after_a_refusal_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = Token(TokenFile(path), now=Clock())
    for number in range(3):
        token.refused(await token.get(), WHY)
        path.write_text(f"later-{number}")
        token.accepted(await token.get())
    assert token.problem == ""


async def test_a_caller_without_a_token_waits_too_and_hears_the_server() -> None:
    token = Token(now=Clock())
    assert await token.get() == ""
    token.refused("", WHY)
    with pytest.raises(UnauthenticatedError, match=r"^it is revoked$") as caught:
        await token.get()
    assert not isinstance(caught.value, TokenError)
    assert caught.value.retry_after_ms == WAIT_S * 1000


def test_the_environment_has_a_token_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_TOKEN", "")
    assert not Token.of_environment().is_given
    monkeypatch.setenv("COMPLETION_TOKEN", SECRET)
    token = Token.of_environment()
    assert (token.at_hand(), token.where) == (SECRET, "the environment variable COMPLETION_TOKEN")
    for command in ("", "vault 'read"):
        with pytest.raises(ValueError, match=r"no command|No closing quotation"):
            Token.of_command(command)


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("127.0.0.1:1", True), ("127.8.8.8:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/run/s", True),
        ("10.0.0.1:1", False), ("127.0.0.1.example.com:1", False), ("localhost.example.com:1", False),
        ("0.0.0.0:1", False), ("[::]:1", False), ("example.com:1", False), ("dns:///localhost:1", False),
    ],
)  # fmt: skip
def test_a_token_leaves_this_machine_only_encrypted(address: str, is_local: bool, tmp_path: Path) -> None:
    assert is_loopback(address) is is_local
    token = Token.of_text(SECRET)
    Endpoint(address, tmp_path / "ca.pem", token=token)
    Endpoint(address, token=Token())
    if is_local:
        Endpoint(address, token=token)
        return
    with pytest.raises(EndpointError) as caught:
        Endpoint(address, token=token)
    assert (caught.value.field, address in caught.value.problem) == ("token", True)


def test_metadata_with_a_token_of_its_own_keep_it() -> None:
    own = (("authorization", "Bearer own"),)
    assert with_token(own, SECRET) == own
    assert with_token((("x-user-id", "ada"),), "t") == (("x-user-id", "ada"), ("authorization", "Bearer t"))
    assert with_token((), "") == ()
