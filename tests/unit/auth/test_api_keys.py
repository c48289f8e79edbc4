"""API keys: who they name, and how a server follows changes of their file."""

import contextlib
import json
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from completion_server.auth.authenticator import Authenticator
from completion_server.auth.claims import RefusedCredentialError, Result
from completion_server.auth.key_file import ApiKey, editing, new_key, parse_keys, read_keys, rotated
from completion_server.auth.settings import AuthSettings
from completion_server.core.credential import Scope
from completion_server.core.errors import ConfigError
from tests.unit.auth.issuers import Recorder, Wall, accepted, refusal, scopes, told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def give(path: Path, wall: Wall, user: str = "ada", expires_after_s: int | None = None) -> tuple[ApiKey, str]:
    """Add a key to the file; return it and its token."""
    key, token = new_key(user, "acme", [Scope.COMPLETE], wall.now, expires_after_s)
    put(path, key)
    return key, token


def put(path: Path, key: ApiKey) -> None:
    with editing(path) as keys:
        keys[key.id] = key


def make(path: Path, wall: Wall, recorder: Recorder | None = None) -> Authenticator:
    return Authenticator(AuthSettings(keys_file=str(path)), wall, emit=recorder or Recorder())


def replace_with(path: Path, content: bytes | None) -> None:
    """Write the file in place; None removes it."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


async def test_a_key_names_its_holder(path: Path, wall: Wall) -> None:
    key, token = give(path, wall)
    callers = make(path, wall)
    found = await accepted(callers, token)
    assert told(found) == ("ada", "acme", "key", key.id)
    assert scopes(found) == {Scope.COMPLETE}
    assert callers.is_current(found)


def test_the_file_holds_no_secret_and_is_its_owners(path: Path, wall: Wall) -> None:
    key, token = give(path, wall)
    assert len(secret := token.rpartition("_")[2]) == 64
    assert secret not in path.read_text() + repr(key)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_is_no_key_of_the_file_is_refused(path: Path, wall: Wall) -> None:
    _, token = give(path, wall)
    recorder = Recorder()
    callers = make(path, wall, recorder)
    other = "cs_000000000000" + token[15:]
    for presented, result in (
        ("", Result.MISSING),
        (token[:-1], Result.MALFORMED),
        (token + "\n", Result.MALFORMED),
        (token.upper().replace("CS_", "cs_"), Result.MALFORMED),
        (token[:-1] + ("0" if token[-1] != "0" else "1"), Result.UNKNOWN),
        (other, Result.UNKNOWN),
    ):
        assert await refusal(callers, presented) is result
        assert recorder.results[-1][1] == result.value
    with pytest.raises(RefusedCredentialError, match=r"no tokens of an issuer, only API keys.* set auth\.issuer"):
        await callers.authenticate("a.b.c", b"")
    assert [kind for kind, _ in recorder.results] == ["none", *["key"] * 5, "token"]


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"revoked": 1}, Result.REVOKED),
        ({"expires": int(Wall().now)}, Result.EXPIRED),
        ({"scopes": (Scope.FEEDBACK,)}, Result.ACCEPTED),
    ],
)
async def test_a_changed_key_ends_what_it_has_opened(
    path: Path, wall: Wall, change: dict[str, Any], result: Result
) -> None:
    key, token = give(path, wall)
    callers = make(path, wall)
    holder = await accepted(callers, token)
    put(path, replace(key, **change))
    await callers.poll()
    assert not callers.is_current(holder)
    if result is Result.ACCEPTED:
        assert scopes(await accepted(callers, token)) == {Scope.FEEDBACK}
    else:
        assert await refusal(callers, token) is result
        assert await refusal(callers, token[:-4] + "0000") is Result.UNKNOWN, "only its holder learns that"


async def test_a_rotated_key_ends_its_old_secret_after_the_overlap(path: Path, wall: Wall) -> None:
    key, first = give(path, wall)
    callers = make(path, wall)
    old_holder = await accepted(callers, first)
    key, second = rotated(key, wall.now, 60)
    put(path, key)
    await callers.poll()
    new_holder = await accepted(callers, second)
    assert told(new_holder) == told(old_holder)
    assert await accepted(callers, first)
    assert callers.is_current(old_holder)
    wall.now += 60
    assert not callers.is_current(old_holder)
    assert await refusal(callers, first) is Result.EXPIRED
    key, third = rotated(key, wall.now, 0)
    put(path, key)
    await callers.poll()
    assert not callers.is_current(new_holder)
    assert await refusal(callers, second) is Result.UNKNOWN
    assert await accepted(callers, third)


async def test_a_broken_file_leaves_the_last_good_keys(
    path: Path, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = give(path, wall)
    recorder = Recorder()
    callers = make(path, wall, recorder)
    replace_with(path, b'{"version": 1, "keys": [')
    for _ in range(3):
        await callers.poll()
    assert recorder.failures == ["auth.keys_file"]
    replace_with(path, None)
    for _ in range(3):
        await callers.poll()
    assert recorder.failures == ["auth.keys_file"] * 2
    assert await accepted(callers, token)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 2
    assert all("its last good content stays" in each and token[16:] not in each for each in said)
    replace_with(path, b'{"version": 1, "keys": []}')
    await callers.poll()
    assert await refusal(callers, token) is Result.UNKNOWN


async def test_a_file_may_come_after_the_server(path: Path, wall: Wall) -> None:
    recorder = Recorder()
    callers = make(path, wall, recorder)
    await callers.poll()
    assert recorder.failures == []
    _, token = give(path, wall)
    assert await refusal(callers, token) is Result.UNKNOWN
    await callers.poll()
    assert await accepted(callers, token)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "Invalid JSON"),
        (b'{"version": 2, "keys": []}', "version: "),
        (b'{"version": 1, "keys": [{"id": "0"}]}', "keys.0.id: "),
        (b"[" * 100_000, "."),
    ],
)
def test_a_server_does_not_start_with_a_broken_file(path: Path, wall: Wall, content: bytes, why: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"auth\.keys_file: {path} can't be used: .*{why}"):
        make(path, wall)


def test_two_keys_of_one_id_are_no_keys(path: Path, wall: Wall) -> None:
    give(path, wall)
    content = json.loads(path.read_bytes())
    with pytest.raises(ValueError, match="the same id"):
        parse_keys(json.dumps(content | {"keys": content["keys"] * 2}).encode())


def test_changes_at_once_lose_nothing(path: Path, wall: Wall) -> None:
    def add_some(user: str) -> None:
        for _ in range(5):
            give(path, wall, user)

    threads = [threading.Thread(target=add_some, args=[f"user {number}"]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read_keys(path)) == 30


def test_a_change_that_fails_leaves_the_file(path: Path, wall: Wall) -> None:
    give(path, wall)
    before = path.read_bytes()
    with contextlib.suppress(ZeroDivisionError), editing(path) as keys:
        keys.clear()
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == [".keys.json.lock", "keys.json"]
