"""Traces: the same each time, real text, and which keys become requests."""

from itertools import pairwise

import pytest

from loadtest.bench.prompt_typing import library_files
from loadtest.bench.prompts import TooFewTextsError
from loadtest.trace import OPENING_SEQUENCE, Trace, Typing, make_trace
from loadtest.typist import LogNormal, TypingModel


@pytest.fixture(scope="module")
def made() -> Trace:
    return make_trace(12, 20.0, "seed")


def test_the_same_seed_makes_the_same_trace(made: Trace) -> None:
    again, other = make_trace(12, 20.0, "seed"), make_trace(12, 20.0, "another")
    assert again == made
    assert again.digest() == made.digest() != other.digest()


def test_more_sessions_leave_the_others_as_they_were(made: Trace) -> None:
    times = [[request.intended_at_s for request in session.requests] for session in made.sessions]
    fewer = make_trace(3, 20.0, "seed")
    assert [[request.intended_at_s for request in session.requests] for session in fewer.sessions] == times[:3]


def test_each_session_types_the_real_text_of_a_file_of_its_own(made: Trace) -> None:
    files = library_files(1_000_000, 0)
    assert len({session.document_uri for session in made.sessions}) == len(made.sessions)
    for session in made.sessions:
        text = files[session.document_uri.removeprefix("file:///")]
        for request in (session.opening, *session.requests):
            assert request.prefix in text
            assert request.suffix in text
            assert len(request.suffix) == 400
            assert request.session == session.number
        typed = [len(request.prefix) for request in (session.opening, *session.requests)]
        assert typed[0] >= 1500
        assert all(a < b for a, b in pairwise(typed))


def test_the_stretch_that_is_typed_is_not_there_yet(made: Trace) -> None:
    files = library_files(1_000_000, 0)
    for session in made.sessions:
        text = files[session.document_uri.removeprefix("file:///")]
        requests = (session.opening, *session.requests)
        begin = text.index(session.opening.prefix)
        typed_to = begin + len(requests[-1].prefix)
        assert text.find(session.opening.suffix, typed_to) >= typed_to


def test_enter_brings_the_indentation_along(made: Trace) -> None:
    for session in made.sessions:
        for request in session.requests:
            line = request.prefix.rpartition("\n")[2]
            if not line.strip():
                rest = request.prefix + " "
                assert not any(rest == other.prefix for other in session.requests), "a blank of it was typed"


def test_sequences_rise_after_the_opening(made: Trace) -> None:
    for session in made.sessions:
        assert session.opening.sequence == OPENING_SEQUENCE
        expected = range(OPENING_SEQUENCE + 1, OPENING_SEQUENCE + 1 + len(session.requests))
        assert [request.sequence for request in session.requests] == list(expected)


def test_every_request_is_in_the_trace_and_knows_its_next_key(made: Trace) -> None:
    for session in made.sessions:
        for request, following in pairwise(session.requests):
            assert request.next_key_at_s <= following.intended_at_s - 0.05 + 1e-9
        for request in session.requests:
            assert 0 < request.intended_at_s < 20.0
            assert request.intended_at_s < request.next_key_at_s < float("inf")


def test_a_key_within_the_debounce_time_takes_the_place_of_the_one_before() -> None:
    even = TypingModel(LogNormal(0.1, 1e-9), keys_per_burst=1e12)
    asked = make_trace(1, 5.0, "even", Typing(model=even, debounce_s=0.09))
    swallowed = make_trace(1, 5.0, "even", Typing(model=even, debounce_s=0.11))
    assert asked.num_requests in {49, 50}
    assert swallowed.num_requests == 0


def test_a_debounced_key_is_in_the_text_of_the_request_that_follows(made: Trace) -> None:
    slow = make_trace(12, 20.0, "seed", Typing(debounce_s=0.2))
    assert 0 < slow.num_requests < made.num_requests
    for session, all_keys in zip(slow.sessions, made.sessions, strict=True):
        texts = {request.prefix for request in all_keys.requests}
        assert all(request.prefix in texts for request in session.requests[:-1])


def test_a_pause_is_counted_from_the_key(made: Trace) -> None:
    for session in made.sessions:
        for request in session.requests:
            key_at_s = request.intended_at_s - 0.05
            assert request.is_pause == (request.next_key_at_s - key_at_s >= 0.5)
    pauses = sum(request.is_pause for session in made.sessions for request in session.requests)
    assert 0 < pauses < made.num_requests / 2


def test_a_gap_of_just_the_pause_is_one() -> None:
    even = TypingModel(LogNormal(0.5, 1e-12), keys_per_burst=1e12)
    just = make_trace(1, 5.0, "even", Typing(model=even, pause_s=0.4999999))
    above = make_trace(1, 5.0, "even", Typing(model=even, pause_s=0.5000001))
    assert {request.is_pause for request in just.sessions[0].requests} == {True}
    assert {request.is_pause for request in above.sessions[0].requests} == {False}


def test_prompts_go_to_the_requests_in_the_order_of_their_keys(made: Trace) -> None:
    documents = list(made.documents())
    ids = [(number,) for number in range(len(documents))]
    rendered = made.with_token_ids(iter(ids))
    assert [request.token_ids for _name, request in rendered.documents()] == ids
    assert [name for name, _request in documents[:2]] == ["seed/0", "seed/0"]
    assert documents[0][1] == made.sessions[0].opening
    assert rendered.digest() == made.digest()


def test_sessions_come_nearest_to_a_rate() -> None:
    typing = Typing()
    assert typing.num_sessions(0.01) == 1
    assert typing.num_sessions(10 * typing.requests_per_s) == 10
    found = make_trace(40, 60.0, "rate", typing).num_requests / 60
    assert found == pytest.approx(40 * typing.requests_per_s, rel=0.15)


def test_texts_that_are_too_long_are_refused() -> None:
    with pytest.raises(TooFewTextsError, match="no file"):
        make_trace(1, 5.0, "seed", Typing(prefix_chars=10_000_000))
