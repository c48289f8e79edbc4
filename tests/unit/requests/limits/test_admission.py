"""Admission: the gate, token buckets, the quotas of users, tenants and addresses, loop lag and feedback."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from completion_server.core.errors import (
    DrainingError,
    InvalidRequestError,
    Limit,
    OverloadedError,
    ServerFullError,
    UnavailableError,
)
from completion_server.core.events import Event, Feedback, LoopLagged
from completion_server.core.outcome import CacheLevel, ServedAnswer
from completion_server.core.request import Caller
from completion_server.requests.feedback import KEPT_S, RecentAnswers
from completion_server.requests.gate import Gate, Readiness
from completion_server.requests.limits.quotas import Quotas
from completion_server.requests.limits.rate_limiter import ROUNDING, Excess, RateLimiter
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.loop_lag import LoopLagMonitor
from tests.support.clocks import ManualClock
from tests.support.constants import with_constants


def open_gate(max_sessions: int = 10, **constants: int) -> Gate:
    settings = AdmissionSettings(max_sessions=max_sessions, users_per_peer=1)
    gate = Gate(with_constants(settings, **constants))
    gate.set_engine_ready(True)
    return gate


@pytest.mark.parametrize(
    ("remaining_s", "expected_ms"), [(None, 1000), (0.0, 1000), (0.03, 1000), (41.5, 41_500), (900.0, 60_000)]
)
def test_callers_are_told_when_a_server_that_can_not_serve_will(remaining_s: float | None, expected_ms: int) -> None:
    gate = Gate(AdmissionSettings(), lambda: remaining_s)
    with pytest.raises(UnavailableError) as caught:
        gate.check()
    assert caught.value.retry_after_ms == expected_ms
    gate.set_engine_ready(True)
    gate.check()
    gate.set_engine_ready(False)
    assert gate.readiness is Readiness.ENGINE_DOWN
    with pytest.raises(UnavailableError, match="failed"):
        gate.check()
    gate.drain()
    with pytest.raises(DrainingError) as refused:
        gate.check()
    assert refused.value.retry_after_ms == 1000


@pytest.mark.parametrize(
    ("constant", "name", "whose", "full"),
    [
        ("max_sessions_per_user", "max_sessions_per_user", "of this user", {"user": "ann", "peer": "10.0.0.7"}),
        ("sessions_per_user_of_peer", "users_per_peer", "from this address", {"peer": "10.0.0.7"}),
    ],
)
def test_the_sessions_of_one_user_or_address_are_limited(
    constant: str, name: str, whose: str, full: dict[str, str]
) -> None:
    gate, caller = open_gate(**{constant: 2}), Caller(**full)
    with gate.enter_session(caller), gate.enter_session(caller):
        with pytest.raises(OverloadedError, match=rf"2 sessions {whose} are open, .*{name}") as caught:
            gate.enter_session(caller)
        assert caught.value.reason == "TOO_MANY_OPEN", "another server is no remedy"
        assert caught.value.limit == Limit(f"admission.{name}", 2)
        for other in ({"user": "bob", "peer": "10.0.0.8"}, {"user": "cyd"}, {"tenant": "other"}):
            gate.enter_session(Caller(**other))
        assert gate.num_sessions == 5
    with gate.enter_session(caller):
        assert gate.num_sessions == 4


def test_the_sessions_of_a_server_are_limited() -> None:
    gate = open_gate(max_sessions=1)
    with gate.enter_session(Caller()):
        with pytest.raises(ServerFullError, match=r"1 sessions are open, .*admission\.max_sessions\)") as caught:
            gate.enter_session(Caller())
        assert (caught.value.retry_after_ms, caught.value.reason) == (1000, "SERVER_FULL")
    with gate.enter_session(Caller()):
        assert gate.num_sessions == 1


def test_a_long_iteration_is_overload_until_the_next_one_begins() -> None:
    clock, emitted = ManualClock(5.0), list[Event]()
    loop_lag = LoopLagMonitor(0.05, clock, emitted.append)
    behind = [loop_lag.is_behind(5.0 + seconds) for seconds in (0.0, 0.05, 0.0599, 0.0601, 9.0)]
    assert behind == [False, False, False, True, True]
    clock.at = 5.2
    loop_lag.tick()
    assert not loop_lag.is_behind(5.2)
    clock.at = 5.205
    loop_lag.tick()
    assert [round(each.seconds, 6) for each in emitted if isinstance(each, LoopLagged)] == [0.19, 0.0]


def allowed(limiter: RateLimiter, key: str, now: float, num: int) -> int:
    """Return how many of `num` requests at one moment are let through."""
    for number in range(num):
        if limiter.delay_s(key, now):
            return number
        limiter.charge(key, now)
    return num


def test_after_a_burst_requests_of_a_key_pass_at_the_rate() -> None:
    limiter = RateLimiter(2.0, 5)
    assert allowed(limiter, "u", 100.0, 10) == 5
    assert [limiter.delay_s("u", now) for now in (100.0, 100.25)] == [0.5, 0.25]
    assert [allowed(limiter, "u", 100.5 + 0.5 * i, 3) for i in range(4)] == [1, 1, 1, 1]
    assert allowed(limiter, "other", 100.0, 10) == 5


def test_keys_whose_bucket_is_full_again_are_forgotten() -> None:
    limiter = RateLimiter(1.0, 2)
    for number in range(20_000):
        assert allowed(limiter, f"u{number}", float(number), 1) == 1
    assert limiter.num_known < 5000
    assert allowed(limiter, "u19999", 19_999.0, 2) == 1, "it was not forgotten too soon"


@given(st.floats(0.1, 1000), st.integers(1, 500), st.floats(0, 1e6))
def test_a_burst_is_exact_at_any_rate_and_time(requests_per_s: float, burst: int, now: float) -> None:
    assert allowed(RateLimiter(requests_per_s, burst), "u", now, burst + 1) == burst


@given(st.floats(0.5, 50), st.integers(1, 20), st.lists(st.floats(0, 2), min_size=1, max_size=200))
@example(0.99999, 1, [0.0, 1.0, 0.0])  # The second passes a little early, so the third waits that much longer.
def test_over_any_time_no_more_pass_than_the_burst_and_the_rate_allow(
    requests_per_s: float, burst: int, gaps: list[float]
) -> None:
    limiter = RateLimiter(requests_per_s, burst)
    now, passed = 1000.0, 0
    for gap in gaps:
        now += gap
        assert 0 <= limiter.delay_s("u", now) <= 1 / requests_per_s * (1 + ROUNDING + 1e-6)
        passed += allowed(limiter, "u", now, 1)
    assert passed <= burst + requests_per_s * (now - 1000.0) + 1e-3


SETTINGS = with_constants(
    AdmissionSettings(user_requests_per_s=1, user_tokens_per_s=10, users_per_peer=2),
    request_burst_s=4,
    token_burst_s=10,
)
USER_TOKENS = Limit("admission.user_tokens_per_s", 10)
USERS_PER_PEER = Limit("admission.users_per_peer", 2)


def caller(user: str, peer: str = "10.0.0.7", **fields: Any) -> Caller:
    return Caller(user, "s", fields.pop("tenant", ""), f"{peer}:1" if peer else "", peer, **fields)


def take(quotas: Quotas, caller: Caller, now: float) -> Excess | None:
    excess = quotas.excess(caller, now)
    if excess is None:
        quotas.charge_request(caller, now)
    return excess


def num_allowed(quotas: Quotas, callers: list[Caller], now: float = 0.0) -> int:
    return sum(take(quotas, each, now) is None for each in callers)


def test_an_excess_names_the_limit_and_the_wait() -> None:
    quotas = Quotas(SETTINGS)
    num_allowed(quotas, [caller("alice")] * 4 + [caller("bob")] * 4)
    assert take(quotas, caller("alice"), 0.0) == Excess(1.0, Limit("admission.user_requests_per_s", 1))
    assert take(quotas, caller("carol"), 0.0) == Excess(0.5, USERS_PER_PEER, "10.0.0.7")
    assert take(quotas, caller("carol", ""), 0.0) is None, "a Unix socket has no address"
    assert num_allowed(quotas, [caller(f"u{n}", is_verified=True) for n in range(9)] * 4) == 36, "nor a verified caller"


def test_computed_tokens_are_charged_and_the_wait_for_them_is_bounded() -> None:
    quotas = Quotas(SETTINGS)
    quotas.charge_tokens(caller("alice"), 99, 0.0)
    assert take(quotas, caller("alice"), 0.0) is None
    quotas.charge_tokens(caller("alice"), 51, 0.0)
    assert take(quotas, caller("alice"), 0.0) == Excess(pytest.approx(5.1), USER_TOKENS)
    assert take(quotas, caller("alice"), 6.0) is None
    quotas.charge_tokens(caller("alice"), 10**9, 6.0)
    assert take(quotas, caller("alice"), 6.0) == Excess(pytest.approx(10.0), USER_TOKENS)
    assert take(quotas, caller("bob"), 6.0) == Excess(pytest.approx(10.0), USERS_PER_PEER, "10.0.0.7")


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
    trusting = AdmissionSettings(trust_user_names=True)
    users = [caller(f"user-{number}") for number in range(1000)]
    assert (trusting.num_users_per_peer, trusting.num_sessions_per_peer) == (0, 0)
    assert num_allowed(Quotas(trusting), users) == 1000
    assert AdmissionSettings(trust_user_names=True, users_per_peer=7).num_users_per_peer == 7
    assert num_allowed(Quotas(AdmissionSettings()), users) == 2 * 40


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
    settings = AdmissionSettings(tenant_requests_per_s=1, tenant_tokens_per_s=10)
    quotas = Quotas(with_constants(settings, request_burst_s=3, token_burst_s=5))
    users = [caller(f"user-{number}", tenant="acme", is_verified=True) for number in range(5)]
    assert num_allowed(quotas, users) == 3
    assert take(quotas, users[0], 0.0) == Excess(pytest.approx(1.0), Limit("admission.tenant_requests_per_s", 1))
    assert take(quotas, caller("user-0", tenant="other", is_verified=True), 0.0) is None
    quotas.charge_tokens(users[1], 100, 0.0)
    assert take(quotas, users[2], 2.0) == Excess(pytest.approx(3.1), Limit("admission.tenant_tokens_per_s", 10))


SERVED = ServedAnswer(0.05, 5)


def known(num_characters: int = 10) -> RecentAnswers:
    answers = RecentAnswers()
    answers.add("a", num_characters, 0.0, SERVED)
    return answers


@pytest.mark.parametrize(
    ("before", "report", "most"),
    [
        ((), Feedback("accepted", 2**32 - 1), "at most 10.*, got 4294967295"),
        ((Feedback("accepted_word", 4), Feedback("accepted_word", 4)), Feedback("accepted_line", 3), "at most 2"),
    ],
)
def test_accepted_characters_sum_to_at_most_the_answers_length(
    before: tuple[Feedback, ...], report: Feedback, most: str
) -> None:
    answers = known()
    for each in before:
        assert answers.accept("a", each, 1.0)
    with pytest.raises(InvalidRequestError, match=f"accepted_characters: must be {most}"):
        answers.accept("a", report, 1.0)
    assert answers.accept("a", Feedback("accepted", 2), 1.0)


def test_a_report_counts_once_and_a_time_makes_only_a_survival_another_one() -> None:
    answers = known()
    for feedback in (Feedback("shown"), Feedback("survived", 0, 30, 1.0), Feedback("survived", 0, 90, 0.5)):
        assert [answers.accept("a", feedback, 1.0) is not None for _ in range(3)] == [True, False, False]
    assert answers.accept("a", Feedback("accepted", 0, 1), 1.0)
    assert not any(answers.accept("a", Feedback("accepted", 0, after_s), 1.0) for after_s in range(100))


def test_answers_are_forgotten_by_age_and_by_number() -> None:
    answers = RecentAnswers(max_answers=3)
    for number in range(5):
        answers.add(number, 1, float(number), SERVED)
    assert len(answers) == 3
    with pytest.raises(InvalidRequestError):
        answers.accept(1, Feedback("shown"), 1.0)
    answers.add("late", 1, 3.0 + KEPT_S, SERVED)
    assert len(answers) == 2
    assert answers.accept(4, Feedback("shown"), 3.0 + KEPT_S)
    with pytest.raises(InvalidRequestError, match="not older than 900 s"):  # nothing was added since
        answers.accept(4, Feedback("accepted", 1), 4.0 + KEPT_S)


@pytest.mark.parametrize("k", [None, 0, 1024])
@pytest.mark.parametrize("level", list(CacheLevel))
def test_how_an_answer_was_served_is_remembered(k: int | None, level: CacheLevel) -> None:
    served, answers = ServedAnswer(0.1 / 3, k, level), RecentAnswers()
    answers.add(("user", "session", 1), 10, 1e7 / 3, served)
    report = answers.accept(("user", "session", 1), Feedback("accepted", 10), 1.0)
    assert report is not None
    assert report.answer == served


@pytest.mark.parametrize(
    ("reports", "reactions"),
    [
        (("shown", "accepted", (30, 0.7)), [["shown"], ["accepted"], ["survived"]]),
        (("accepted_word", "accepted_line", "shown"), [["shown", "accepted"], [], []]),
        (("rejected",), [["shown"]]),
        (((30, 0.6), (90, 0.5)), [["shown", "accepted"], []]),
        (((360, 2 / 3),), [["shown", "accepted", "survived"]]),
    ],
)
def test_a_report_tells_of_the_reactions_that_were_not_known_before(
    reports: tuple[str | tuple[int, float], ...], reactions: list[list[str]]
) -> None:
    answers, found = known(100), []
    for each in reports:
        feedback = Feedback(each, 4) if isinstance(each, str) else Feedback("survived", 0, *each)
        report = answers.accept("a", feedback, 1.0)
        assert report is not None
        found.append([reaction.value for reaction in report.reactions])
    assert found == reactions
