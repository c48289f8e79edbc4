"""Settings of Redis, which replicas share, and of the completion cache."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from completion_server.core.addresses import is_loopback, is_unix_socket, split_address
from completion_server.core.checks import Between, require_bounds

MIB = 1024 * 1024
MIN_SECRET_BYTES = 32

Topology = Literal["standalone", "sentinel", "cluster"]


@dataclass(frozen=True, slots=True)
class RedisTlsSettings:
    """The `[redis.tls]` section: PEM files for connections to Redis."""

    enabled: bool = False
    """Whether connections to Redis use TLS, also those to Sentinels."""
    ca: str = ""
    """The certificate authority of Redis's certificate. Unset: the authorities of the system."""
    certificate: str = ""
    """The client's certificate chain, if Redis asks for one."""
    key: str = ""
    """Its private key."""

    def __post_init__(self) -> None:
        """Check that the files fit together."""
        if bool(self.certificate) != bool(self.key):
            msg = "certificate: needs key beside it, and key needs certificate"
            raise ValueError(msg)
        if (self.ca or self.certificate) and not self.enabled:
            msg = "enabled: must be true if a certificate is given, got False"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The `[redis]` section."""

    addresses: tuple[str, ...] = ()
    """HOST:PORT, or unix:PATH, of the Redis that the replicas of this server share; with `topology` "sentinel" those of
    the Sentinels, with "cluster" those of some nodes. Empty: this replica shares nothing."""
    topology: Topology = "standalone"
    """Whether `addresses` are one Redis, Sentinels that know its master, or nodes of a Redis Cluster."""
    master_name: str = "mymaster"
    """The name under which Sentinels know the master."""
    username: str = ""
    """The ACL user; "" is Redis's default user."""
    password_file: str = ""
    """A file that holds the password. It is read at each connection, so a password can be changed without a restart."""
    sentinel_username: str = ""
    """The ACL user of the Sentinels; "" is their default user. `username` and `password_file` are for the master."""
    sentinel_password_file: str = ""
    """A file that holds the Sentinels' password, read at each connection. Unset: they ask for none."""
    secret_file: str = ""
    """A file with a secret of at least 32 bytes, the same for all replicas. Names in Redis are hashed with it, and
    cached completions are encrypted with it. Needed unless `topology` is "standalone" and Redis is on loopback or on a
    Unix socket."""
    key_prefix: str = "completion"
    """Begins the names of all keys and channels. Servers of other models or tests need another one."""
    tls: RedisTlsSettings = RedisTlsSettings()
    replica_id: str = ""
    """This replica's name in status and traces, the same after a restart. Unset: the host's name and the port of
    server.listen."""
    timeout_ms: ClassVar[float] = 100.0
    """How long Redis may take to answer before the connection counts as failed. No request waits for it."""
    retry_s: ClassVar[float] = 0.5
    """How long the breaker stays open before the next attempt to reach Redis."""

    def __post_init__(self) -> None:
        """Check the bounds and the addresses."""
        require_bounds(self)
        for address in self.addresses:
            if not is_unix_socket(address):
                try:
                    split_address(address)
                except ValueError as error:
                    msg = f"addresses: {error}"
                    raise ValueError(msg) from error
        if self.topology == "standalone" and len(self.addresses) > 1:
            msg = f'addresses: topology "standalone" takes one address, got {len(self.addresses)}'
            raise ValueError(msg)
        if self.addresses and not self.secret_file and not self.is_local:
            why = "Redis is not on loopback" if self.topology == "standalone" else f'topology is "{self.topology}"'
            msg = f"secret_file: must name a file, because {why}, got addresses {self.addresses}"
            raise ValueError(msg)
        if self.topology != "sentinel" and (self.sentinel_username or self.sentinel_password_file):
            msg = f'topology: must be "sentinel" if a user or password of Sentinels is given, got "{self.topology}"'
            raise ValueError(msg)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach Redis. Sentinels and nodes name others, which may be on any machine."""
        return self.topology == "standalone" and all(is_loopback(address) for address in self.addresses)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The `[cache]` section: completions that are not computed twice."""

    enabled: bool = True
    """Whether greedy and seeded completions are kept, and answer the same request again, also typed along."""
    local_bytes: Annotated[int, Between(0, 2**40)] = 64 * MIB
    """Memory for completions in the process (level 1); the least recently used ones go first. 0 keeps none."""
    shared: bool = True
    """Whether completions are also kept in Redis (level 2), if `redis.addresses` are given."""
    look_up: Literal["moved", "always"] = "moved"
    """When level 2 is asked: "moved" asks if another replica may have served the user in the last minute, in which all
    that level 2 keeps was made; "always" asks for each request that level 1 does not answer. With engine.cache_scope
    "tenant" it is always asked."""
    local_ttl_s: ClassVar[float] = 30.0
    """How long a completion is kept in the process."""
    shared_ttl_s: ClassVar[float] = 60.0
    """How long a completion is kept in Redis, as long as a replica remembers that another one served a user
    (`shared_lanes.KEPT_S`)."""
    lookup_ms: ClassVar[float] = 5.0
    """How long a request accepts an answer from Redis. The request waits in the queue or runs meanwhile."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)
