"""The settings of Redis and of the cache, and the secret that hides names."""

from pathlib import Path
from typing import Any

import pytest

from completion_server.core.errors import ConfigError
from completion_server.state.secret import Secret, load_secret
from completion_server.state.settings import CacheSettings, RedisSettings, Topology

LOOPBACK = ("127.0.0.1:6379",)


@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
def test_local_addresses_that_name_other_servers_need_a_secret(topology: Topology) -> None:
    with pytest.raises(ValueError, match=f'secret_file: must name a file, because topology is "{topology}"'):
        RedisSettings(LOOPBACK, topology)
    assert not RedisSettings(LOOPBACK, topology, secret_file="s").is_local


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "unix:/run/redis.sock"])
def test_one_redis_on_this_machine_needs_none(address: str) -> None:
    assert RedisSettings((address,)).is_local


@pytest.mark.parametrize("login", [{"sentinel_username": "alice"}, {"sentinel_password_file": "p"}])
def test_only_sentinels_have_a_login_of_their_own(login: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r'topology: must be "sentinel" .* got "standalone"'):
        RedisSettings(LOOPBACK, **login)
    RedisSettings(LOOPBACK, "sentinel", secret_file="s", **login)


def test_older_completions_are_only_found_by_asking_always() -> None:
    with pytest.raises(ValueError, match=r"shared_ttl_s.*look_up"):
        CacheSettings(shared_ttl_s=60.5)
    assert CacheSettings(shared_ttl_s=3600, look_up="always").shared_ttl_s == 3600
    assert CacheSettings(shared_ttl_s=60).look_up == "moved"


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


@pytest.mark.parametrize("address", ["redis.example:6379", "10.0.0.7:6379"])
def test_a_redis_that_others_can_reach_needs_a_secret(address: str) -> None:
    with pytest.raises(ValueError, match=f"secret_file: must name a file.*{address}"):
        RedisSettings(addresses=(address,))
    assert not RedisSettings(addresses=(address,), secret_file="s").is_local
