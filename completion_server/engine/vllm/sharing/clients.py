"""How the clients of a shared engine core are numbered and named. Imports nothing of vLLM.

Client 0 is the parent; the front end at place p is client p + 1.
"""

_PREFIX = "\0client#"
"""Begins an id that stands for all requests of a client. No request has such an id: its end is random digits."""


def client_at(place: int) -> int:
    """Return the client of a front end."""
    return place + 1


def requests_of(client: int) -> str:
    """Return the id that stands for all requests of a client."""
    return f"{_PREFIX}{client}"


def client_of(request_id: str) -> int | None:
    """Return the client for whose requests an id stands; None if it is that of one request."""
    return int(request_id.removeprefix(_PREFIX)) if request_id.startswith(_PREFIX) else None
