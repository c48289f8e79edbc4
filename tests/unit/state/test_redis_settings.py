"""What the settings of Redis allow together."""

from typing import Any

import pytest

from completion_server.state.settings import RedisSettings, Topology

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
