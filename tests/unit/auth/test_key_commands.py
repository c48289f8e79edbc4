"""The commands that give out and take back API keys."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from completion_server.auth import key_file
from completion_server.auth.authenticator import Authenticator
from completion_server.auth.key_file import editing, read_keys
from completion_server.auth.settings import AuthSettings
from completion_server.cli import main
from tests.unit.auth.issuers import Recorder, accepted

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments, "--file", str(path)])


def add(path: Path, *arguments: str) -> tuple[str, str]:
    """Add a key; return its id and its token."""
    done = run(path, "add", *arguments)
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(r"cs_[0-9a-f]{12}_[0-9a-f]{64}\n", done.stdout)
    return done.stdout.split("_")[1], done.stdout.strip()


def listed(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(path, "list", "--json").stdout)
    return found


async def test_a_key_that_was_added_is_listed_and_opens_the_server(path: Path) -> None:
    key_id, token = add(path, "ada", "--tenant", "acme", "--expires", "90d")
    add(path, "ops", "--scope", "admin", "--scope", "complete")
    ada, ops = listed(path)
    assert (ada["id"], ada["user"], ada["tenant"], ada["state"]) == (key_id, "ada", "acme", "usable")
    assert ada["expires"] - ada["created"] == 90 * 86_400
    assert (ada["scopes"], ops["scopes"]) == (["complete", "feedback"], ["admin", "complete"])
    assert (ops["tenant"], ops["expires"]) == ("", None)
    holder = await accepted(Authenticator(AuthSettings(keys_file=str(path)), emit=Recorder()), token)
    assert (holder.user, holder.tenant) == ("ada", "acme")
    shown = run(path, "list").stdout
    assert len(shown.splitlines()) == 3  # one line for each key, whatever its width
    assert re.search(rf"{key_id}  ada   acme    complete feedback +\S+ \S+ UTC +\S+ \S+ UTC +usable", shown)
    assert "never" in shown
    assert token[16:] not in shown + run(path, "list", "--json").stdout


def test_a_key_is_revoked_by_its_id_and_by_its_user(path: Path) -> None:
    first, _ = add(path, "ada", "--tenant", "acme")
    add(path, "ada", "--tenant", "acme")
    add(path, "ada", "--tenant", "other")
    assert run(path, "revoke", first).exit_code == 0
    assert [key["state"] for key in listed(path)] == ["revoked", "usable", "usable"]
    ambiguous = run(path, "revoke", "ada")
    assert ambiguous.exit_code == 1
    assert "tenants acme, other have a user ada: name one with --tenant" in ambiguous.stderr
    assert run(path, "revoke", "ada", "--tenant", "acme").exit_code == 0
    assert [key["state"] for key in listed(path)] == ["revoked", "revoked", "usable"]
    again = run(path, "revoke", first)
    assert (again.exit_code, again.stdout) == (0, f"Nothing to do: {first} was revoked before.\n")
    nobody = run(path, "revoke", "grace")
    assert (nobody.exit_code, nobody.stderr) == (1, f"Error: no key or user grace in {path}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's changes keep another owner")
def test_what_root_makes_belongs_to_the_owner_of_the_folder(path: Path) -> None:
    os.chown(path.parent, NOBODY, NOBODY)
    add(path, "ada")
    lock = path.with_name(f".{path.name}.lock")
    assert [each.stat().st_uid for each in (path, lock)] == [NOBODY, NOBODY]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_links_to_another_file_gives_nobody_that_file(
    path: Path, link: Callable[[Path, Path], None]
) -> None:
    other = path.with_name("other")
    other.write_text("secret")
    owner = other.stat().st_uid
    if os.geteuid() == 0:
        os.chown(path.parent, NOBODY, NOBODY)
    link(other, path.with_name(f".{path.name}.lock"))
    added = run(path, "add", "ada")
    assert (other.read_text(), other.stat().st_uid) == ("secret", owner)
    assert (added.exit_code == 1) == (link is os.symlink)


def test_a_key_is_rotated(path: Path) -> None:
    key_id, first = add(path, "ada")
    second = run(path, "rotate", key_id).stdout.strip()
    third = run(path, "rotate", key_id, "--overlap", "1h").stdout.strip()
    assert len({first, second, third}) == 3
    assert {token.split("_")[1] for token in (first, second, third)} == {key_id}
    (key,) = read_keys(path)
    assert key.previous_until > key.created
    again = run(path, "rotate", key_id, "--overlap", "1h")
    assert (again.exit_code, read_keys(path)) == (1, (key,))
    assert "the token before the last rotation counts until" in again.stderr
    assert run(path, "rotate", key_id).exit_code == 0
    run(path, "revoke", key_id)
    refused = run(path, "rotate", key_id)
    assert (refused.exit_code, refused.stderr) == (1, f"Error: key {key_id} is revoked: add another one\n")
    assert run(path, "rotate", "ada").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["add", "ada", "--expires", "soon"], "must be a number with s, m, h, d or w, such as 90d"),
        (["add", "ada", "--expires", "0d"], "at most ten years"),
        (["add", "ada", "--expires", "999999999w"], "at most ten years"),
        (["add", "ada", "--scope", "root"], "'root' is not one of"),
        (["add", ""], "USER: must be 1 to 256 bytes of printable text"),
        (["add", "ada", "--tenant", "a\nb"], "--tenant: must be 1 to 256 bytes"),
    ],
)
def test_what_can_not_be_a_key_is_refused(path: Path, arguments: list[str], why: str) -> None:
    done = run(path, *arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert not path.exists()


def test_a_file_that_can_not_be_used_is_told_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("{")
    for arguments in (["add", "ada"], ["list"], ["revoke", "ada"], ["rotate", "0"]):
        done = run(path, *arguments)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"Error: {path} is broken: ")
    assert path.read_text() == "{"
    path.unlink()
    monkeypatch.setattr(key_file, "_LOCK_WAIT_S", 0.05)
    with editing(path):
        done = run(path, "add", "ada")
    assert done.exit_code == 1
    assert "another command has kept" in done.stderr


def test_the_file_is_named_by_the_servers_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[auth]\nkeys_file = "made/keys.json"\n')
    runner = CliRunner()
    assert runner.invoke(main, ["keys", "add", "ada", "--config", str(config)]).exit_code == 0
    assert [key.user for key in read_keys(tmp_path / "made" / "keys.json")] == ["ada"]
    monkeypatch.setenv("COMPLETION_SERVER__AUTH__KEYS_FILE", str(tmp_path / "named.json"))
    assert runner.invoke(main, ["keys", "add", "grace"]).exit_code == 0
    assert [key.user for key in read_keys(tmp_path / "named.json")] == ["grace"]
    monkeypatch.delenv("COMPLETION_SERVER__AUTH__KEYS_FILE")
    for arguments, why in (
        ([], "Name the file of keys. Give --file FILE"),
        (["--file", str(tmp_path / "k"), "--config", str(config)], "Give --file or --config, not both."),
    ):
        done = runner.invoke(main, ["keys", "list", *arguments])
        assert done.exit_code == 2
        assert why in done.stderr
    config.write_text("[auth]\nkey_file = 1\n")
    done = runner.invoke(main, ["keys", "list", "--config", str(config)])
    assert (done.exit_code, done.stderr) == (1, "Error: auth.key_file: unknown key; did you mean auth.keys_file?\n")
