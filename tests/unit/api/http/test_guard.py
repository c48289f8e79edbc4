"""Which Host and Origin headers are served, and whom a request belongs to."""

import pytest

from completion_server.api.callers import Callers
from completion_server.api.http.app import HttpApp
from completion_server.api.http.requests import caller_of, identify, with_document
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings
from tests.support.authentication import KnownCallers, verified


async def nothing(*_arguments: object) -> None: ...


APP = HttpApp({}, nothing, ("Code.example",))
LIMITS = LimitSettings()
OWN = ("127.0.0.1", "127.0.0.1:8012", "localhost:8012", "[::1]:8012", "[::1]", "code.example:1", "CODE.example")
FOREIGN = ("", "evil.example:8012", "localhost.evil.example", "127.0.0.1:x", ":8012", "code.example.")
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


async def identified(
    headers: dict[str, str], address: str = "10.0.0.7", *, trusts: bool = False, known: KnownCallers | None = None
) -> Caller:
    callers = Callers(AdmissionSettings(trust_user_names=trusts), LIMITS, known)
    return await identify(callers, headers, {"client": (address, 50_000), "state": {}})


async def owner(headers: dict[str, str], address: str = "10.0.0.7", user: str = "") -> str:
    return caller_of(await identified(headers, address), headers, user, LIMITS)[0].owner


TOKEN, ANN = {"authorization": "Bearer very-secret"}, {"x-user-id": "ann"}


async def test_a_caller_without_authentication_is_its_name_or_else_its_address_and_token() -> None:
    alike = (
        (await owner({}), await owner({}, "::ffff:10.0.0.7"), await owner({"authorization": "Basic x"})),
        (await owner(TOKEN), await owner({"x-api-key": "very-secret"})),
        (await owner(ANN), await owner(TOKEN | ANN, user="bob"), await owner({}, user="ann")),
        (await owner(TOKEN, user="bob"), await owner({}, user="bob")),
        (await owner({}, "10.0.0.8"),),
    )
    assert [len(set(owners)) for owners in alike] == [1] * len(alike)
    assert len({owner for owners in alike for owner in owners}) == len(alike)
    assert "very-secret" not in await owner(TOKEN)


async def test_people_who_share_a_token_have_limits_for_each_document() -> None:
    caller, has_name = caller_of(await identified(TOKEN), TOKEN, "", LIMITS)
    assert (caller.user, has_name) == ("", False)
    assert len({caller.owner, *(with_document(caller, document).owner for document in (1, 2))}) == 3


async def test_where_names_are_trusted_only_the_header_is_a_name() -> None:
    assert (await identified(ANN, trusts=True)).is_verified
    assert not (await identified({"x-api-key": "t"}, trusts=True)).is_verified
    caller = await identified({}, trusts=True)
    found = [caller_of(caller, {}, user, LIMITS, trusts_names=True) for user in ("ann", "")]
    assert (found[0], found[0][1]) == (found[1], False)


async def test_long_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"x-user-id: must be at most 128 bytes, got 129"):
        await identified({"x-user-id": "u" * 129})
    for headers in ({}, {"x-api-key": "t"}):
        caller = await identified(headers, known=KnownCallers({"t": verified("ann")}) if headers else None)
        with pytest.raises(InvalidRequestError, match=r"user: must be at most 128 bytes, got 129"):
            caller_of(caller, headers, "u" * 129, LIMITS)


async def test_with_authentication_the_token_alone_names_the_user() -> None:
    known = KnownCallers({"a": verified("ann"), "a2": verified("ann")})
    claims = {"x-user-id": "bob", "x-tenant-id": "other"}
    (first, has_name), (renewed, _), (other_client, _) = [
        caller_of(await identified({"x-api-key": token} | claims, known=known), claims, user, LIMITS)
        for token, user in (("a", ""), ("a2", ""), ("a", "bob"))
    ]
    assert has_name
    assert first == renewed  # so a token that replaces another changes nothing
    assert (first.user, first.tenant, first.is_verified) == ("ann", "acme", True)
    assert (first.owner == other_client.owner, first.session == other_client.session) == (True, False)
