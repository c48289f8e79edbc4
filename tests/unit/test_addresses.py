import pytest

from completion_server.core.addresses import is_loopback, split_address


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


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), ("server.example:7", ("server.example", 7))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":50051", "127.0.0.1:", "a:x", "a:\u0663", "a:-1"])
def test_any_other_text_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT, got"):
        split_address(address)


def test_a_port_has_sixteen_bits() -> None:
    with pytest.raises(ValueError, match=r"the port must be from 0 to 65535, got '127\.0\.0\.1:99999'"):
        split_address("127.0.0.1:99999")


def test_an_ipv6_address_needs_brackets() -> None:
    with pytest.raises(ValueError, match="needs brackets"):
        split_address("::1:50051")
