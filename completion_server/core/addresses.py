"""Addresses of listeners: HOST:PORT, [IPV6]:PORT, unix:PATH."""

import ipaddress

MAX_PORT = 65_535
_IPV6_NETWORK_BITS = 64


def peer_key(host: str) -> str:
    """Return the key of an IP address: the IPv4 address, or the /64 network of an IPv6 address: a host has many."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if not isinstance(address, ipaddress.IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_NETWORK_BITS), strict=False))


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of HOST:PORT.

    Raises:
        ValueError: the address does not have that form; the message has the form and the address.

    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        msg = f"must be HOST:PORT, got {address!r}"
        raise ValueError(msg)
    if int(port) > MAX_PORT:
        msg = f"the port must be from 0 to {MAX_PORT}, got {address!r}"
        raise ValueError(msg)
    is_bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not is_bracketed:
        msg = f"an IPv6 address needs brackets, as in [::1]:50051, got {address!r}"
        raise ValueError(msg)
    return host.strip("[]"), int(port)


def is_unix_socket(address: str) -> bool:
    """Return whether an address is that of a Unix socket."""
    return address.startswith(("unix:", "unix-abstract:"))


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address.

    A host name other than localhost counts as reachable, because its resolver may return any address.
    """
    host = address.rpartition(":")[0].strip("[]")
    if is_unix_socket(address) or host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
