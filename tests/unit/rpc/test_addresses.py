import pytest

from completion_server.rpc.server import is_loopback


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50051", "127.9.8.7:1", "[::1]:50051", "[::ffff:127.0.0.1]:50051", "localhost:50051",
        "unix:/run/completion.sock", "unix-abstract:completion",
    ],
)  # fmt: skip
def test_loopback_addresses_and_unix_sockets_are_local(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.evil.com:50051", "127.0.0.1.evil.com:50051", "localhost.evil.com:50051", "unixbox:50051",
        "unix.evil.com:50051", "0.0.0.0:50051", "[::]:50051", "[::ffff:10.0.0.1]:50051", "10.0.0.1:50051",
        "[fe80::1%eth0]:50051", "server.example:50051", "127.1:50051", "",
    ],
)  # fmt: skip
def test_every_other_address_counts_as_reachable(address: str) -> None:
    assert not is_loopback(address)
