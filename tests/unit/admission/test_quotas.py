"""Limits of requests and tokens for users and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.admission.gate import AdmissionSettings
from completion_server.admission.quotas import Excess, Quotas, RefusalBudget
from completion_server.core.errors import Limit
from completion_server.core.request import Caller

SETTINGS = AdmissionSettings(
    user_requests_per_s=1, user_burst=4, user_tokens_per_s=10, user_token_burst=100, users_per_peer=2
)


USER_REQUESTS = Limit("admission.user_requests_per_s", 1)
USER_TOKENS = Limit("admission.user_tokens_per_s", 10)
USERS_PER_PEER = Limit("admission.users_per_peer", 2)


def caller(user: str, peer: str = "10.0.0.7") -> Caller:
    return Caller(user, "s", "", f"{peer}:1" if peer else "", peer)


def take(quotas: Quotas, caller: Caller, now: float) -> Excess | None:
    excess = quotas.excess(caller, now)
    if excess is None:
        quotas.charge_request(caller, now)
    return excess


def num_allowed(quotas: Quotas, callers: list[Caller], now: float = 0.0) -> int:
    return sum(take(quotas, each, now) is None for each in callers)


def test_an_excess_names_the_address_and_the_wait() -> None:
    quotas = Quotas(SETTINGS)
    num_allowed(quotas, [caller("alice")] * 4 + [caller("bob")] * 4)
    assert take(quotas, caller("alice"), 0.0) == Excess(1.0, USER_REQUESTS)
    assert take(quotas, caller("carol"), 0.0) == Excess(0.5, USERS_PER_PEER, "10.0.0.7")
    assert take(quotas, caller("carol", ""), 0.0) is None, "a Unix socket has no address"


def test_tokens_are_charged_when_they_were_computed() -> None:
    quotas = Quotas(SETTINGS)
    quotas.charge_tokens(caller("alice"), 99, 0.0)
    assert take(quotas, caller("alice"), 0.0) is None
    quotas.charge_tokens(caller("alice"), 51, 0.0)
    assert take(quotas, caller("alice"), 0.0) == Excess(pytest.approx(5.1), USER_TOKENS)
    assert take(quotas, caller("alice"), 6.0) is None


def test_what_exceeds_the_limits_of_an_address_and_is_accepted_is_not_charged_to_it() -> None:
    quotas = Quotas(SETTINGS)
    num_allowed(quotas, [caller(f"user-{number}") for number in range(8)])
    for user in ("dave", "erin"):
        quotas.charge_request(caller(user), 0.0, charges_peer=False)
        quotas.reserve(caller(user), 1000, 0.0, charges_peer=False).settle(2000, 0.0)
    assert take(quotas, caller("frank"), 0.0) == Excess(0.5, USERS_PER_PEER, "10.0.0.7")
    assert take(quotas, caller("frank"), 0.5) is None
    excess = take(quotas, caller("dave"), 0.5)
    assert excess is not None
    assert excess.limit == USER_TOKENS, "the user is charged"


def test_an_address_has_no_limit_if_names_are_trusted() -> None:
    assert AdmissionSettings().num_users_per_peer == 2
    assert AdmissionSettings(trust_user_names=True).num_users_per_peer == 0
    assert AdmissionSettings(trust_user_names=True, users_per_peer=7).num_users_per_peer == 7
    quotas = Quotas(AdmissionSettings(trust_user_names=True))
    assert num_allowed(quotas, [caller(f"user-{number}") for number in range(1000)]) == 1000


def test_the_wait_is_bounded_however_many_tokens_were_computed() -> None:
    quotas = Quotas(SETTINGS)
    quotas.charge_tokens(caller("alice"), 10**9, 0.0)
    assert take(quotas, caller("alice"), 0.0) == Excess(pytest.approx(10.0), USER_TOKENS)
    assert take(quotas, caller("bob"), 0.0) == Excess(pytest.approx(10.0), USERS_PER_PEER, "10.0.0.7")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.floats(0, 1)), max_size=80))
def test_no_order_of_requests_passes_more_than_the_limits(requests: list[tuple[str, str, float]]) -> None:
    quotas, now = Quotas(SETTINGS), 0.0
    users: dict[tuple[str, str], int] = {}
    peers: dict[str, int] = {}
    for user, peer, gap_s in requests:
        now += gap_s
        if take(quotas, caller(user, peer), now) is None:
            users[user, peer] = users.get((user, peer), 0) + 1
            peers[peer] = peers.get(peer, 0) + 1
    assert all(num <= 4 + now + 0.01 for num in users.values())
    assert all(num <= 8 + 2 * now + 0.01 for num in peers.values())


def test_the_users_of_a_tenant_share_its_limits() -> None:
    quotas = Quotas(
        AdmissionSettings(
            trust_user_names=True,
            tenant_requests_per_s=1,
            tenant_burst=3,
            tenant_tokens_per_s=10,
            tenant_token_burst=50,
        )
    )
    users = [Caller(f"user-{number}", "s", "acme", "", "", is_verified=True) for number in range(5)]
    other = Caller("user-0", "s", "other", "", "", is_verified=True)
    assert num_allowed(quotas, users) == 3
    assert take(quotas, users[0], 0.0) == Excess(pytest.approx(1.0), Limit("admission.tenant_requests_per_s", 1))
    assert take(quotas, other, 0.0) is None
    quotas.charge_tokens(users[1], 100, 0.0)
    assert take(quotas, users[2], 2.0) == Excess(pytest.approx(3.1), Limit("admission.tenant_tokens_per_s", 10))


KIB = 1024


def test_connections_whose_bucket_is_full_are_forgotten() -> None:
    budget = RefusalBudget(100 * KIB, 300 * KIB)
    for number in range(10_000):
        budget.charge(number, 1, float(number))
    assert budget.num_known < 5_000


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 5)), max_size=50))
def test_no_connection_waits_for_longer_than_a_minute_or_for_ever(charges: list[tuple[int, float]]) -> None:
    budget, now = RefusalBudget(100 * KIB, 300 * KIB), 0.0
    for num_bytes, pause_s in charges:
        now += pause_s
        budget.charge("a", num_bytes, now)
        assert 0 <= budget.wait_s("a", now) <= 60.001
    assert budget.wait_s("a", now + 61) == 0
