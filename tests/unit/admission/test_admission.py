"""Admission: the gate, the quotas of users, tenants and addresses, loop lag and feedback."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.admission.feedback import KEPT_S, RecentAnswers
from completion_server.admission.gate import Gate, Readiness
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.admission.quotas import Excess, Quotas
from completion_server.admission.settings import AdmissionSettings
from completion_server.core.errors import (
    DrainingError,
    InvalidRequestError,
    Limit,
    OverloadedError,
    ServerFullError,
    UnavailableError,
)
from completion_server.core.events import Event, Feedback, LoopLagged
from completion_server.core.outcome import CacheLevel, Reaction, ServedAnswer
from completion_server.core.request import Caller
from tests.support.clocks import ManualClock


def make_gate(max_sessions: int = 2, **limits: int) -> Gate:
    return Gate(AdmissionSettings(max_sessions=max_sessions, retry_after_ms=70, **limits))


def test_a_failed_engine_and_a_starting_one_have_different_states() -> None:
    gate = make_gate()
    gate.set_engine_ready(True)
    gate.check()
    gate.set_engine_ready(False)
    assert gate.readiness is Readiness.ENGINE_DOWN
    with pytest.raises(UnavailableError, match="failed"):
        gate.check()


@pytest.mark.parametrize(
    ("remaining_s", "expected_ms"), [(None, 70), (0.0, 70), (0.03, 70), (41.5, 41_500), (900.0, 60_000)]
)
def test_while_the_engine_starts_callers_are_told_the_time_that_is_left(
    remaining_s: float | None, expected_ms: int
) -> None:
    gate = Gate(AdmissionSettings(retry_after_ms=70), lambda: remaining_s)
    with pytest.raises(UnavailableError) as caught:
        gate.check()
    assert caught.value.retry_after_ms == expected_ms
    gate.drain()
    with pytest.raises(DrainingError) as refused:
        gate.check()
    assert refused.value.retry_after_ms == 70


@pytest.mark.parametrize(
    ("key", "whose", "full"),
    [
        ("max_sessions_per_user", "of this user", {"user": "ann", "peer": "10.0.0.7"}),
        ("max_sessions_per_tenant", "of this tenant", {"tenant": "acme", "peer": "10.0.0.7"}),
        ("max_sessions_per_peer", "from this address", {"peer": "10.0.0.7"}),
    ],
)
def test_the_sessions_of_one_user_tenant_or_address_are_limited(key: str, whose: str, full: dict[str, str]) -> None:
    gate, caller = make_gate(max_sessions=10, **{key: 2}), Caller(**full)
    gate.set_engine_ready(True)
    with gate.enter_session(caller), gate.enter_session(caller):
        with pytest.raises(OverloadedError, match=rf"2 sessions {whose} are open, .*{key}") as caught:
            gate.enter_session(caller)
        assert caught.value.reason == "TOO_MANY_OPEN", "another server is no remedy"
        assert caught.value.limit == Limit(f"admission.{key}", 2)
        for other in ({"user": "bob", "peer": "10.0.0.8"}, {"user": "cyd"}, {"tenant": "other"}):
            gate.enter_session(Caller(**other))
        assert gate.num_sessions == 5
    with gate.enter_session(caller):
        assert gate.num_sessions == 4


def test_a_long_iteration_is_overload_until_the_next_one_begins() -> None:
    clock, emitted = ManualClock(5.0), list[Event]()
    loop_lag = LoopLagMonitor(0.05, clock, emitted.append)
    assert [loop_lag.is_behind(5.0 + seconds) for seconds in (0.0, 0.05, 0.0599, 0.0601, 9.0)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    clock.at = 5.2
    loop_lag.tick()
    assert not loop_lag.is_behind(5.2)
    clock.at = 5.205
    loop_lag.tick()
    assert [round(each.seconds, 6) for each in emitted if isinstance(each, LoopLagged)] == [0.19, 0.0]


def test_sessions_are_counted_and_bounded() -> None:
    gate = make_gate(max_sessions=1)
    gate.set_engine_ready(True)
    with gate.enter_session(Caller()):
        assert gate.num_sessions == 1
        with pytest.raises(ServerFullError, match=r"1 sessions are open, .*admission\.max_sessions\)") as caught:
            gate.enter_session(Caller())
        assert (caught.value.retry_after_ms, caught.value.reason) == (70, "SERVER_FULL")
    assert gate.num_sessions == 0
    with gate.enter_session(Caller()):
        assert gate.num_sessions == 1


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


def test_verified_callers_share_an_address_without_its_limits() -> None:
    quotas = Quotas(SETTINGS)
    callers = [Caller(f"user {number}", "s", "acme", "10.0.0.7:1", "10.0.0.7", is_verified=True) for number in range(9)]

    assert num_allowed(quotas, callers * SETTINGS.user_burst) == 9 * SETTINGS.user_burst
    assert take(quotas, caller("unverified"), 0.0) is None


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


SERVED = ServedAnswer(0.05, 5)


NOW_S = 1.0


def known(num_characters: int = 10) -> RecentAnswers:
    answers = RecentAnswers()
    answers.add("a", num_characters, 0.0, SERVED)
    return answers


def test_accepted_characters_are_at_most_the_answers_length() -> None:
    with pytest.raises(InvalidRequestError, match=r"accepted_characters: must be at most 10.*, got 4294967295"):
        known().accept("a", Feedback("accepted", 2**32 - 1), NOW_S)
    assert known().accept("a", Feedback("accepted", 10), NOW_S)


def test_pieces_accepted_one_by_one_sum_to_at_most_the_answers_length() -> None:
    answers = known()
    assert answers.accept("a", Feedback("accepted_word", 4), NOW_S)
    assert answers.accept("a", Feedback("accepted_word", 4), NOW_S)
    with pytest.raises(InvalidRequestError, match="at most 2"):
        answers.accept("a", Feedback("accepted_line", 3), NOW_S)
    assert answers.accept("a", Feedback("accepted", 2), NOW_S)


def test_a_report_counts_once() -> None:
    answers = known()
    for feedback in (Feedback("shown"), Feedback("survived", 0, 30, 1.0), Feedback("survived", 0, 90, 0.5)):
        assert [answers.accept("a", feedback, NOW_S) is not None for _ in range(3)] == [True, False, False]


def test_answers_are_forgotten_by_age_and_by_number() -> None:
    answers = RecentAnswers(max_answers=3)
    for number in range(5):
        answers.add(number, 1, float(number), SERVED)
    assert len(answers) == 3
    with pytest.raises(InvalidRequestError):
        answers.accept(1, Feedback("shown"), NOW_S)
    answers.add("late", 1, 3.0 + KEPT_S, SERVED)
    assert len(answers) == 2
    assert answers.accept(4, Feedback("shown"), 3.0 + KEPT_S)
    with pytest.raises(InvalidRequestError, match="not older than 900 s"):  # nothing was added since
        answers.accept(4, Feedback("accepted", 1), 4.0 + KEPT_S)


def test_a_time_makes_only_a_survival_another_report() -> None:
    answers = known()
    assert answers.accept("a", Feedback("accepted", 0, 1), 0.0)
    assert not any(answers.accept("a", Feedback("accepted", 0, after_s), 0.0) for after_s in range(100))


@pytest.mark.parametrize("k", [None, 0, 1024])
@pytest.mark.parametrize("level", list(CacheLevel))
def test_how_an_answer_was_served_is_remembered(k: int | None, level: CacheLevel) -> None:
    served, answers = ServedAnswer(0.1 / 3, k, level), RecentAnswers()
    answers.add(("user", "session", 1), 10, 1e7 / 3, served)
    for feedback in (Feedback("shown"), Feedback("accepted", 10)):
        report = answers.accept(("user", "session", 1), feedback, NOW_S)
        assert report is not None
        assert report.answer == served


def test_a_report_tells_of_the_reactions_that_were_not_known_before() -> None:
    def reactions(*reports: Feedback) -> list[list[str]]:
        answers = known(100)
        found = [answers.accept("a", each, NOW_S) for each in reports]
        assert all(each is not None and each.answer == SERVED for each in found)
        return [[reaction.value for reaction in each.reactions] for each in found if each is not None]

    def survived(after_s: int, share: float) -> Feedback:
        return Feedback("survived", 0, after_s, share)

    assert reactions(Feedback("shown"), Feedback("accepted"), survived(30, 0.7)) == [
        ["shown"],
        ["accepted"],
        ["survived"],
    ]
    assert reactions(Feedback("accepted_word", 4), Feedback("accepted_word", 4), Feedback("shown")) == [
        ["shown", "accepted"], [], [],
    ]  # fmt: skip
    assert reactions(Feedback("rejected")) == [["shown"]]
    assert reactions(survived(30, 0.6), survived(90, 0.5)) == [["shown", "accepted"], []]
    assert reactions(survived(360, 2 / 3)) == [["shown", "accepted", "survived"]]
    assert len(Reaction) == 3
