"""Identification of a caller by its connection and its metadata."""

from dataclasses import replace

import pytest

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.rpc.identity import Identity, identity_of, split_peer
from completion_server.rpc.settings import LimitSettings


class Call:
    """A call as gRPC describes it."""

    def __init__(self, peer: str, *metadata: tuple[str, str | bytes]) -> None:
        self._peer, self._metadata = peer, metadata

    def peer(self) -> str:
        return self._peer

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


def test_user_and_tenant_names_come_from_the_metadata() -> None:
    call = Call("ipv4:10.0.0.7:1", ("x-user-id", "alice"), ("x-tenant-id", b"acme"), ("other", "x"))
    identity = identity_of(call, LimitSettings())
    assert identity == Identity("alice", "acme", "10.0.0.7:1", "10.0.0.7")
    assert identity.call("s") == Caller("alice", "s", "acme", "10.0.0.7:1", "10.0.0.7")
    assert identity_of(call, LimitSettings(), trusts_names=True).call("s").is_verified
    assert not identity_of(Call("unix:"), LimitSettings(), trusts_names=True).is_verified
    with pytest.raises(InvalidRequestError, match="metadata x-user-id: must be at most 128 bytes, got 129"):
        identity_of(Call("unix:", ("x-user-id", "a" * 129)), LimitSettings())


def test_a_verified_user_is_charged_instead_of_the_proxys_connection() -> None:
    proxied = Identity("alice", "acme", "10.0.0.7:1", "10.0.0.7", is_verified=True)
    assert proxied.source != replace(proxied, user="bob").source
    assert replace(proxied, is_verified=False).source == "10.0.0.7:1"


def test_streams_of_a_unix_socket_are_different_owners() -> None:
    local = Identity("", "", "", "")
    one, other = local.stream("me"), local.stream("me")
    assert one.owner != other.owner
    assert one.memory != other.memory
    assert local.call("me").owner == local.call("me").owner, "calls can't be"
    assert local.call("me").memory is None


def test_an_unverified_name_is_another_user_at_another_address() -> None:
    here, there = (Caller("alice", "s", "", f"{peer}:1", peer) for peer in ("10.0.0.7", "10.0.0.8"))
    assert here.owner != there.owner
    assert here.owner == replace(here, connection="10.0.0.7:2", session="t").owner
    assert replace(here, is_verified=True).owner == replace(there, is_verified=True).owner
