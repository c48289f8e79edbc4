"""Which Host and Origin headers are served, and whom a request belongs to."""

import pytest

from completion_server.admission.callers import Callers
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.http.app import HttpApp
from completion_server.http.requests import caller_of, identify, with_document
from tests.support.authentication import KnownCallers, verified


async def nothing(*_arguments: object) -> None: ...


APP = HttpApp({}, nothing, ("Code.example",))
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
ORIGINS = ("null", "", "http://evil.example", "http://127.0.0.1:9999", "https://localhost:8012")


@pytest.mark.parametrize(
    ("host", "origin", "fault"),
    [
        *((host, origin, "") for host in OWN for origin in (None, f"http://{host}")),
        *((host, None, "header host: ") for host in FOREIGN),
        *(("127.0.0.1:8012", origin, "header origin: ") for origin in ORIGINS),
    ],
)
def test_own_names_are_served_and_foreign_ones_refused(host: str, origin: str | None, fault: str) -> None:
    found = APP.fault(host, origin)
    assert found.startswith(fault)
    assert bool(found) is bool(fault)


HERE = "10.0.0.7", 50_000


async def identified(
    headers: dict[str, str],
    client: tuple[str, int] = HERE,
    *,
    trusts_names: bool = False,
    known: KnownCallers | None = None,
) -> Caller:
    callers = Callers(AdmissionSettings(trust_user_names=trusts_names), LIMITS, known)
    return await identify(callers, headers, {"client": client, "state": {}})


async def owner(headers: dict[str, str], client: tuple[str, int] = HERE, body_user: str = "") -> str:
    return caller_of(await identified(headers, client), headers, body_user, LIMITS)[0].owner


async def test_a_caller_without_a_name_is_its_address_over_all_connections() -> None:
    assert await owner({}) == await owner({}, ("10.0.0.7", 50_001))
    assert await owner({}) != await owner({}, ("10.0.0.8", 50_000))
    assert await owner({}, ("::ffff:10.0.0.7", 1)) == await owner({})


async def test_tokens_tell_callers_apart_and_are_not_names() -> None:
    token = {"authorization": "Bearer very-secret"}
    found = await owner(token)
    assert found != await owner({})
    assert found == await owner({"x-api-key": "very-secret"}) == await owner({"authorization": "bearer very-secret"})
    assert "very-secret" not in found
    assert await owner({"authorization": "Basic x"}) == await owner({})


async def test_the_header_counts_before_the_body_and_the_body_before_the_token() -> None:
    token, header = {"authorization": "Bearer t"}, {"x-user-id": "ann"}
    assert await owner(token | header, body_user="bob") == await owner(header)
    assert await owner(token, body_user="bob") == await owner({}, body_user="bob")
    assert await owner({}, body_user="ann") == await owner(header)


async def test_people_who_share_a_token_have_limits_for_each_document() -> None:
    headers = {"authorization": "Bearer any"}
    identity = await identified(headers)
    caller, has_name = caller_of(identity, headers, "", LIMITS)
    assert (identity.user, caller.user, has_name) == ("", "", False)
    owners = {with_document(caller, document).owner for document in (1, 2)}
    assert len(owners | {with_document(caller_of(identity, {}, "", LIMITS)[0], 1).owner}) == 3


async def test_a_name_in_the_body_counts_for_nothing_where_names_are_trusted() -> None:
    identity = await identified({}, trusts_names=True)
    ann, has_name = caller_of(identity, {}, "ann", LIMITS, trusts_names=True)
    assert ann == caller_of(identity, {}, "", LIMITS)[0]
    assert not has_name


async def test_only_the_header_is_verified() -> None:
    assert (await identified({"x-user-id": "ann"}, trusts_names=True)).is_verified
    assert not (await identified({"x-api-key": "t"}, trusts_names=True)).is_verified


async def test_long_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"x-user-id: must be at most 128 bytes, got 129"):
        await identified({"x-user-id": "u" * 129})
    for headers in ({}, {"x-api-key": "t"}):
        identity = await identified(headers, known=KnownCallers({"t": verified("ann")}) if headers else None)
        with pytest.raises(InvalidRequestError, match=r"user: must be at most 128 bytes, got 129"):
            caller_of(identity, headers, "u" * 129, LIMITS)


async def test_with_authentication_the_token_alone_names_the_user() -> None:
    known = KnownCallers({"a": verified("ann"), "a2": verified("ann")})
    claims = {"x-user-id": "bob", "x-tenant-id": "other"}
    callers = [
        caller_of(await identified({"x-api-key": token} | claims, known=known), claims, body_user, LIMITS)
        for token, body_user in (("a", ""), ("a2", ""), ("a", "bob"))
    ]
    assert all(has_name for _caller, has_name in callers)
    first, renewed, other_client = (caller for caller, _has_name in callers)
    assert first == renewed  # so a token that replaces another changes nothing
    assert (first.user, first.tenant, first.is_verified) == ("ann", "acme", True)
    assert first.owner == other_client.owner
    assert first.session != other_client.session
