"""The secret that hides names and encrypts completions."""

from pathlib import Path

import pytest

from completion_server.core.errors import ConfigError
from completion_server.state.secret import Secret, load_secret
from completion_server.state.settings import RedisSettings


def test_names_are_repeatable_and_hide_their_text() -> None:
    one, same, other = Secret(b"a" * 32), Secret(b"a" * 32), Secret(b"b" * 32)
    name = one.name("lane", "acme/user/alice")
    assert name == same.name("lane", "acme/user/alice")
    assert "alice" not in name
    assert len({name, other.name("lane", "acme/user/alice"), one.name("session", "acme/user/alice")}) == 3


def test_keys_for_different_purposes_differ() -> None:
    secret = Secret(b"a" * 32)
    assert secret.derive("names") != secret.derive("encryption")
    assert len(secret.derive("encryption")) == 32


def test_a_secret_is_read_from_its_file_which_may_end_with_a_newline(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"a" * 32 + b"\n")
    assert load_secret(RedisSettings(secret_file=str(file))) == Secret(b"a" * 32)
    file.write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"redis.secret_file: .* at least 32 bytes, got 5; make one with"):
        load_secret(RedisSettings(secret_file=str(file)))
    with pytest.raises(ConfigError, match=r"redis.secret_file: .*/none can't be read"):
        load_secret(RedisSettings(secret_file=str(tmp_path / "none")))
