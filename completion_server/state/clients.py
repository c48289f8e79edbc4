"""Makes redis-py clients from the settings: one Redis, the master that Sentinels know, or a Redis Cluster."""

import contextlib
from pathlib import Path
from typing import Any

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException, RedisError

from completion_server.core.addresses import is_unix_socket, split_address
from completion_server.state.settings import RedisSettings

CONNECT_TIMEOUT_S = 0.5
_NODE_TIMEOUT_S = 0.2
"""Sentinels and a Cluster's nodes are asked one after another while a connection is made. Two of them may be gone."""
_RESP2 = 2
FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)
"""What a client raises if Redis can't be used. A Cluster that is down raises errors that are no `RedisError`."""

Client = Redis | RedisCluster


class FileCredentials(CredentialProvider):
    """Reads the password at each connection, so that a new password needs no restart."""

    def __init__(self, username: str, password_file: str) -> None:
        """Log in as `username`, "" for the default user."""
        self._username = username
        self._path = Path(password_file)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user and the password. Raises OSError if the file can't be read."""
        password = self._path.read_text(encoding="utf-8").strip()
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same; a local file of some bytes is read faster than a thread is asked."""
        return self.get_credentials()


class _MasterClient(Redis):
    """A client of the master that Sentinels know, which also owns the clients of the Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the connections to the master and to the Sentinels, which redis-py leaves open."""
        pool: Any = self.connection_pool
        await super().aclose(close_connection_pool)
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def make_client(settings: RedisSettings) -> Client:
    """Return a client that sends commands. It connects with its first command and never retries one."""
    options = _options(settings, settings.timeout_ms / 1000)
    if settings.topology == "cluster":
        nodes = [ClusterNode(*split_address(address)) for address in settings.addresses]
        options["socket_connect_timeout"] = _NODE_TIMEOUT_S
        return RedisCluster(startup_nodes=nodes, retry=_no_retry(), **options)
    return _single(settings, options)


async def forget_nodes(client: Client) -> None:
    """Let a Cluster's client learn its nodes anew: redis-py goes on to send pipelines to a node that has failed."""
    if isinstance(client, RedisCluster):
        with contextlib.suppress(*FAILURES):
            await client.aclose()


async def make_listener(settings: RedisSettings, client: Client, channel: str) -> Redis:
    """Return a client for messages of a sharded channel. Each wait for a message needs a timeout of its own.

    On a Cluster it is a client of the node that owns the channel, as `client` knows the nodes.
    """
    options = _options(settings, CONNECT_TIMEOUT_S + settings.timeout_ms / 1000)
    if isinstance(client, RedisCluster):
        await client.initialize()
        node = client.get_node_from_key(channel)
        if node is None:
            msg = f"no node of the cluster owns the channel {channel}"
            raise ConnectionError(msg)
        return Redis(host=node.host, port=int(node.port), retry=_no_retry(), **options)
    return _single(settings, options)


def _single(settings: RedisSettings, options: dict[str, Any]) -> Redis:
    options["retry"] = _no_retry()
    if settings.topology == "sentinel":
        sentinels = [split_address(address) for address in settings.addresses]
        quick = {"socket_timeout": _NODE_TIMEOUT_S, "socket_connect_timeout": _NODE_TIMEOUT_S, "retry": _no_retry()}
        quick |= _login_options(settings.sentinel_username, settings.sentinel_password_file)
        group: Any = Sentinel
        manager = group(sentinels, sentinel_kwargs=quick | _tls_options(settings))
        client: Redis = manager.master_for(settings.master_name, redis_class=_MasterClient, **options)
        return client
    (address,) = settings.addresses
    if is_unix_socket(address):
        return Redis(unix_socket_path=address.removeprefix("unix:"), **options)
    host, port = split_address(address)
    return Redis(host=host, port=port, **options)


def _options(settings: RedisSettings, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "protocol": _RESP2,
    }
    return options | _login_options(settings.username, settings.password_file) | _tls_options(settings)


def _login_options(username: str, password_file: str) -> dict[str, Any]:
    if password_file:
        return {"credential_provider": FileCredentials(username, password_file)}
    return {"username": username} if username else {}


def _tls_options(settings: RedisSettings) -> dict[str, Any]:
    tls = settings.tls
    if not tls.enabled:
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": tls.ca or None,
        "ssl_certfile": tls.certificate or None,
        "ssl_keyfile": tls.key or None,
    }


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)
