"""Traces: the same each time and for any number of workers, real text, and which keys become requests."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.traffic.documents import DocumentsError, library_files
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import (
    OPENING_SEQUENCE,
    Event,
    Text,
    Trace,
    Trigger,
    TypedRequest,
    TypedSession,
    join_digests,
)
from tests.support.examples import examples

DEBOUNCE_S = 0.05
EVEN = {"key_gap_sigma": 1e-9, "keys_per_burst": 1e12}
TWO = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", "sessions": 12, "duration_s": 20, "seed": "seed", **fields})


@pytest.fixture(scope="module")
def made() -> Trace:
    return make_trace(of())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few small files: traces of them are made quickly."""
    root = tmp_path_factory.mktemp("documents")
    for number in range(5):
        lines = (f"def f{number}_{line}(x):\n    return x + {line}\n" for line in range(400))
        (root / f"{number}.py").write_text("\n".join(lines))
    return str(root)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Return scenarios with a bit of everything."""
    share = st.sampled_from([0.0, 0.3, 1.0])
    kind = draw(st.sampled_from(["steady", "ramp", "spike", "day"]))
    return {
        "sessions": draw(st.integers(1, 12)),
        "duration_s": draw(st.integers(2, 20)),
        "seed": draw(st.integers(0, 1000)),
        "typing": {"idle_share": draw(st.sampled_from([0.0, 0.5])), "away_share": draw(st.sampled_from([0.0, 0.5]))},
        "editor": {"prefetch_share": draw(share), "explicit_share": draw(share)},
        "shape": {"kind": kind, "at_s": 1, "factor": 3},
        "regions": TWO,
        "abusers": {"count": draw(st.integers(0, 2)), "requests_per_s": 20},
        "slow_readers": {"share": draw(share)},
    }


def all_requests(trace: Trace) -> list[TypedRequest]:
    return [request for session in trace.sessions for request in session.requests]


@settings(max_examples=examples(0.5))
@given(fields=scenarios(), num_workers=st.integers(1, 4))
def test_workers_share_the_sessions_and_the_requests_of_each_are_in_order(
    fields: dict[str, Any], num_workers: int, folder: str
) -> None:
    scenario = of(**fields, documents={"source": folder})
    whole = make_trace(scenario)
    shares = [make_trace(scenario, worker, num_workers) for worker in range(num_workers)]
    shared = sorted((session for share in shares for session in share.sessions), key=lambda session: session.number)
    assert tuple(shared) == whole.sessions
    assert [session.number for session in whole.sessions] == list(range(scenario.sessions + scenario.abusers.count))
    assert join_digests(share.digest() for share in shares) == whole.digest() == make_trace(scenario).digest()
    for session in whole.sessions:
        check_order(session, scenario.duration_s)


def check_order(session: TypedSession, duration_s: float) -> None:
    requests = session.requests
    sequences = range(OPENING_SEQUENCE, OPENING_SEQUENCE + 1 + len(requests))
    assert [request.sequence for request in (session.opening, *requests)] == list(sequences)
    assert all(0 <= request.intended_at_s < min(duration_s, request.next_key_at_s) for request in requests)
    assert all(request.session == session.number for request in requests)
    for request, following in pairwise(requests):
        assert request.intended_at_s <= following.intended_at_s
        if session.user:
            assert request.next_key_at_s == math.inf, "an abuser heeds nothing"
        elif request.trigger is Trigger.PREFETCH and request.end == following.end:
            assert request.next_key_at_s == following.next_key_at_s
        else:
            assert request.next_key_at_s <= following.intended_at_s


def test_everything_of_a_session_is_in_the_digest(made: Trace) -> None:
    digests = [
        make_trace(of(sessions=2, **fields)).digest()
        for fields in (
            {},
            {"seed": "other"},
            {"duration_s": 21},
            {"documents": {"language": "rust"}},
            {"slow_readers": {"share": 1}},
            {"regions": [{"name": "a", "share": 0.01}, {"name": "b", "share": 0.99}]},
            {"events": [{"kind": "reconnect", "at_s": 1}]},
            {"editor": {"explicit_share": 1}},
            {"typing": {"pause_ms": 900}},
        )
    ]
    assert len(set(digests)) == len(digests)
    first = made.sessions[0]
    other = Text(first.opening.text.before, first.opening.text.after + "x")
    last = replace(first, requests=(*first.requests[:-1], replace(first.requests[-1], text=other)))
    changed = [first, replace(first, opening=replace(first.opening, text=other)), last]
    assert len({session.hashed("") for session in changed}) == 3


def test_neither_more_sessions_nor_editor_settings_change_the_typing(made: Trace) -> None:
    assert make_trace(of(sessions=3)).sessions == made.sessions[:3]
    other = make_trace(of(editor={"prefetch_share": 0.5, "explicit_share": 0.5}, slow_readers={"share": 0.5}))

    def typed(trace: Trace) -> list[tuple[int, float, float, str]]:
        found = (each for each in all_requests(trace) if each.trigger is not Trigger.PREFETCH)
        return [(each.session, each.intended_at_s, each.next_key_at_s, each.prefix) for each in found]

    assert typed(other) == typed(made)


def test_each_session_types_the_real_text_of_a_file(made: Trace) -> None:
    files = library_files(1_000_000, 0)
    assert len({session.document_uri for session in made.sessions}) > 6
    for session in made.sessions:
        text, requests = files[session.document_uri.removeprefix("file:///")], (session.opening, *session.requests)
        for request in requests:
            assert request.text is session.opening.text, "one text for all requests of a session"
            assert request.prefix + request.truth + request.suffix in text
            assert (len(request.suffix), len(request.truth) >= 200) == (400, True)
        assert requests[0].end == 1500
        for request, following in pairwise(requests):
            assert request.end < following.end
            assert request.truth.startswith(following.prefix[len(request.prefix) :])


def test_a_key_becomes_a_request_unless_another_one_comes_within_the_debounce_time() -> None:
    even = EVEN | {"key_gap_median_s": 0.1}
    asked, swallowed = (
        make_trace(of(sessions=1, duration_s=5, typing=even | {"debounce_ms": ms})).num_requests for ms in (90, 110)
    )
    assert (asked in {49, 50}, swallowed) == (True, 0)


def test_a_pause_is_counted_from_the_key() -> None:
    even = EVEN | {"key_gap_sigma": 1e-12, "key_gap_median_s": 0.5}
    for pause_ms, is_pause in ((499.9999, True), (500.0001, False)):
        found = make_trace(of(sessions=1, duration_s=5, typing=even | {"pause_ms": pause_ms}))
        assert {request.is_pause for request in all_requests(found)} == {is_pause}


def test_prefetches_are_sent_at_the_key_and_explicit_requests_in_pauses() -> None:
    found = all_requests(make_trace(of(editor={"prefetch_share": 1.0})))
    ahead = {(each.session, each.end): each for each in found if each.trigger is Trigger.PREFETCH}
    typed = [each for each in found if each.trigger is Trigger.AUTOMATIC]
    assert typed
    for request in typed:
        early = ahead[request.session, request.end]
        assert (early.sequence, early.is_pause) == (request.sequence - 1, False)
        assert early.intended_at_s == pytest.approx(request.intended_at_s - DEBOUNCE_S)
    found = all_requests(make_trace(of(sessions=60, editor={"explicit_share": 0.4})))
    explicit = [each.is_pause for each in found if each.trigger is Trigger.EXPLICIT]
    assert all(explicit)
    assert len(explicit) / sum(each.is_pause for each in found) == pytest.approx(0.4, abs=0.06)


def test_the_shape_sets_the_number_of_typing_users() -> None:
    spike = {"kind": "spike", "at_s": 20, "for_s": 20, "factor": 10}
    found = make_trace(of(sessions=200, duration_s=60, shape=spike))
    before, peak, after = (
        {each.session for each in all_requests(found) if begin <= each.intended_at_s - DEBOUNCE_S < begin + 20}
        for begin in (0, 20, 40)
    )
    assert (len(before), len(after)) == pytest.approx((20, 20), abs=2)
    assert len(peak) == pytest.approx(200, abs=10), "a pause may take the whole of it"
    assert len(after - before) <= 2, "the same ones as before"


def test_idle_sessions_ask_nothing() -> None:
    idle = make_trace(of(sessions=100, typing={"idle_share": 0.4})).sessions
    assert sum(not session.requests for session in idle) == pytest.approx(40, abs=2)
    assert all(session.opening.prefix for session in idle)


def test_regions_and_slow_readers_have_their_shares() -> None:
    regions = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.2}, {"name": "c", "share": 0.3}]
    found = make_trace(of(sessions=200, duration_s=1, regions=regions, slow_readers={"share": 0.25, "pause_ms": 300}))
    count = Counter(session.region for session in found.sessions)
    assert [count[region] for region in range(3)] == pytest.approx([100, 40, 60], abs=2)
    slow = Counter(session.reads_every_s for session in found.sessions)
    assert (slow[0.3], slow[0.3] + slow[0.0]) == (pytest.approx(50, abs=2), 200)


def test_abusers_come_after_the_editors_at_a_constant_rate(made: Trace) -> None:
    found = make_trace(of(abusers={"count": 2, "requests_per_s": 100}))
    assert found.sessions[:12] == made.sessions
    assert [session.user for session in found.sessions] == [""] * 12 + ["abuser-0", "abuser-1"]
    for session in found.sessions[12:]:
        assert [each.intended_at_s for each in session.requests] == pytest.approx([n / 100 for n in range(2000)])
        assert len({request.prefix for request in session.requests}) == 200


def test_events_name_regions_by_their_place() -> None:
    loss = {"kind": "region_loss", "at_s": 5, "region": "b"}
    events = [{"kind": "reconnect", "at_s": 3}, loss | {"for_s": 4}, loss]
    found = make_trace(of(sessions=1, regions=TWO, events=events)).events
    assert found[0] == Event(3, "reconnect", None, 3)
    assert found[1:] == (Event(5, "region_loss", 1, 9), Event(5, "region_loss", 1, 20))


def test_prompts_go_to_the_requests_in_the_order_of_their_keys(made: Trace) -> None:
    documents = list(made.documents())
    ids: list[Sequence[int]] = [(number,) for number in range(len(documents))]
    rendered = made.with_token_ids(iter(ids))
    assert [request.token_ids for _name, request in rendered.documents()] == ids
    assert documents[0] == ("seed/0", made.sessions[0].opening)
    assert rendered.digest() == made.digest()


def test_runs_that_are_too_long_for_any_file_and_invalid_worker_numbers_are_refused(folder: str) -> None:
    with pytest.raises(DocumentsError, match=r"none of the 5 files of .* has room for \d+ keys"):
        make_trace(of(sessions=1, duration_s=36_000, slice_s=100, documents={"source": folder}))
    for worker in (-1, 2):
        with pytest.raises(ValueError, match="must be below num_workers = 2"):
            make_trace(of(), worker, 2)
