"""Which Host and Origin headers are served, and whom a request belongs to."""

import pytest

from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.http.guard import Guard
from completion_server.http.identity import caller_of, identity_of, with_document


async def nothing(*_arguments: object) -> None: ...


GUARD = Guard(nothing, ("Code.example",))
LIMITS = LimitSettings()


OWN = (
    "127.0.0.1",
    "127.0.0.1:8012",
    "localhost:8012",
    "[::1]:8012",
    "[::1]",
    "10.1.2.3:80",
    "code.example:1",
    "CODE.example",
)
FOREIGN = (
    "",
    "evil.example:8012",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1:x",
    ":8012",
    "code.example.",
)


@pytest.mark.parametrize("host", OWN)
def test_own_names_are_served(host: str) -> None:
    assert GUARD.fault(host, None) == ""
    assert GUARD.fault(host, f"http://{host}") == ""


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_names_are_refused(host: str) -> None:
    assert GUARD.fault(host, None).startswith("header host: ")


@pytest.mark.parametrize(
    "origin", ["null", "", "http://evil.example", "http://127.0.0.1:9999", "https://localhost:8012"]
)
def test_foreign_pages_are_refused(origin: str) -> None:
    assert GUARD.fault("127.0.0.1:8012", origin).startswith("header origin: ")


def owner(
    headers: dict[str, str], port: int = 50_000, host: str = "10.0.0.7", body_user: str = "", **options: bool
) -> str:
    identity = identity_of(headers, (host, port), LIMITS, **options)
    return caller_of(identity, headers, body_user, LIMITS)[0].owner


def test_a_caller_without_a_name_is_its_address_over_all_connections() -> None:
    assert owner({}) == owner({}, 50_001)
    assert owner({}) != owner({}, host="10.0.0.8")
    assert owner({}, host="::ffff:10.0.0.7") == owner({})


def test_tokens_tell_callers_apart_and_are_not_names() -> None:
    token = {"authorization": "Bearer very-secret"}
    assert owner(token) != owner({})
    assert owner(token) == owner({"x-api-key": "very-secret"}) == owner({"authorization": "bearer very-secret"})
    assert "very-secret" not in owner(token)
    assert owner({"authorization": "Basic x"}) == owner({})


def test_the_header_counts_before_the_body_and_the_body_before_the_token() -> None:
    token, header = {"authorization": "Bearer t"}, {"x-user-id": "ann"}
    assert owner(token | header, body_user="bob") == owner(header)
    assert owner(token, body_user="bob") == owner({}, body_user="bob")
    assert owner({}, body_user="ann") == owner(header)


def test_people_who_share_a_token_have_limits_for_each_document() -> None:
    headers = {"authorization": "Bearer any"}
    identity = identity_of(headers, ("10.0.0.7", 1), LIMITS)
    caller, has_name = caller_of(identity, headers, "", LIMITS)
    assert (identity.user, caller.user, has_name) == ("", "", False)
    owners = {with_document(caller, document).owner for document in (1, 2)}
    assert len(owners | {with_document(caller_of(identity, {}, "", LIMITS)[0], 1).owner}) == 3


def test_a_name_in_the_body_counts_for_nothing_where_names_are_trusted() -> None:
    identity = identity_of({}, ("10.0.0.7", 1), LIMITS, trusts_names=True)
    ann, has_name = caller_of(identity, {}, "ann", LIMITS, trusts_names=True)
    assert ann == caller_of(identity, {}, "", LIMITS)[0]
    assert not has_name


def test_only_the_header_is_verified() -> None:
    assert identity_of({"x-user-id": "ann"}, ("10.0.0.7", 1), LIMITS, trusts_names=True).is_verified
    assert not identity_of({"x-api-key": "t"}, ("10.0.0.7", 1), LIMITS, trusts_names=True).is_verified


def test_long_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"header x-user-id: must be at most 128 bytes, got 129"):
        identity_of({"x-user-id": "u" * 129}, ("10.0.0.7", 1), LIMITS)
    identity = identity_of({}, ("10.0.0.7", 1), LIMITS)
    with pytest.raises(InvalidRequestError, match=r"user: must be at most 128 bytes, got 129"):
        caller_of(identity, {}, "u" * 129, LIMITS)
