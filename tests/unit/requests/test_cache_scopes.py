"""The salts that separate callers."""

import string
from dataclasses import replace

import pytest

from completion_server.core.request import Caller
from completion_server.engine.settings import CacheScope
from completion_server.requests.isolation import SALT_DIGITS, Isolation

SECRET = bytes(range(32))
ADA = Caller("ada", "s", "acme", peer="10.0.0.1", is_verified=True)
BOB = replace(ADA, user="bob")
STRANGER = replace(ADA, is_verified=False, peer="10.0.0.9")
"""Gives the names of another one, and nothing vouches for it."""


@pytest.mark.parametrize(("scope", "is_shared"), [("user", False), ("tenant", True)])
def test_users_of_a_tenant_share_a_salt_by_the_scope(scope: CacheScope, is_shared: bool) -> None:
    isolation = Isolation(SECRET, scope)
    assert (isolation.salt(ADA) == isolation.salt(BOB)) is is_shared
    assert isolation.salt(ADA) == isolation.salt(replace(ADA, session="t", connection="c", peer="10.0.0.2", stream=7))


@pytest.mark.parametrize("scope", ["user", "tenant"])
def test_tenants_strangers_and_other_secrets_have_other_salts(scope: CacheScope) -> None:
    isolation = Isolation(SECRET, scope)
    others = [isolation.salt(replace(ADA, tenant=tenant)) for tenant in ("", "acm", "acme/ada", "x" * 5000)]
    others += [isolation.salt(STRANGER), isolation.salt(replace(STRANGER, peer="10.0.0.8"))]
    others += [Isolation(b"s" * 32, scope).salt(ADA)]
    assert len({*others, isolation.salt(ADA)}) == len(others) + 1
    for salt in others:
        assert len(salt) == SALT_DIGITS
        assert set(salt) <= set(string.hexdigits)


def test_no_tenant_has_the_salt_of_a_user_nor_its_own_name() -> None:
    by_user, by_tenant = Isolation(SECRET), Isolation(SECRET, "tenant")
    tenant = Caller("ada", "s", ADA.owner, is_verified=True)
    assert by_tenant.salt(tenant) != by_user.salt(ADA)
    forged = replace(ADA, tenant=by_tenant.salt(ADA))
    assert by_tenant.salt(forged) != by_tenant.salt(ADA)


def test_the_salts_of_any_number_of_callers_are_made_again_alike() -> None:
    isolation = Isolation(SECRET)
    callers = [replace(ADA, user=f"user {number}") for number in range(10_000)]
    first = [isolation.salt(each) for each in callers]
    assert [isolation.salt(each) for each in callers] == first
    assert len(set(first)) == len(callers)
