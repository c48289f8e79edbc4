"""Round trips and the tiers made from them: the nearest region, without flapping."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from completion_client import RegionSettings, parse_endpoints
from completion_client.regions.distances import Distances, WindowedMinimum
from tests.support.examples import examples

A, B, C, D = parse_endpoints("a:1,b:2,c:3,d:4")
SETTINGS = RegionSettings(change_after_s=10.0, window_s=4.0)
FIRST = 3
"""Samples that settle at once."""


def distances(**round_trips_ms: float) -> Distances:
    """Return the distances of A, B, C and D, each measured often enough to have settled."""
    found = Distances((A, B, C, D), SETTINGS)
    for endpoint in (A, B, C, D):
        if endpoint.address[0] in round_trips_ms:
            for _ in range(FIRST):
                found.measured(endpoint, round_trips_ms[endpoint.address[0]] / 1000, 0.0)
    return found


def test_without_samples_all_are_one_tier() -> None:
    assert distances().tiers == ((A, B, C, D),)


def test_tiers_go_by_distance_and_those_not_measured_come_last() -> None:
    assert distances(a=70.0, b=5.0, d=140.0).tiers == ((B,), (A,), (D,), (C,))


def test_endpoints_within_the_larger_margin_are_one_region_in_the_given_order() -> None:
    assert distances(a=14.9, b=5.0, c=15.1, d=40.0).tiers == ((A, B), (C,), (D,))
    assert distances(a=100.0, b=124.9, c=125.1, d=156.0).tiers == ((A, B), (C, D))


def test_first_samples_settle_at_once_and_the_shortest_counts() -> None:
    found = Distances((A, B), SETTINGS)
    assert found.measured(A, 0.2, 0.0)
    assert found.measured(B, 0.1, 0.0)
    assert found.tiers == ((B,), (A,))
    assert found.measured(A, 0.005, 0.1)
    assert found.tiers == ((A,), (B,))
    assert found.version == 3


def test_another_that_becomes_nearer_is_chosen_when_it_has_been_for_long_enough() -> None:
    found = distances(a=40.0, b=70.0)
    for now_s in range(30):
        if found.measured(B, 0.02, float(now_s)):
            break
    assert now_s == 10
    assert found.tiers[:2] == ((B,), (A,))


def test_a_short_change_changes_nothing() -> None:
    found = distances(a=40.0, b=70.0)
    version = found.version
    for now_s in range(60):  # 9 s near, then far again until the near samples have left the window
        found.measured(B, 0.02 if now_s % 20 < 7 else 0.07, float(now_s))
    assert found.version == version


def test_a_longer_way_is_noticed_when_the_window_has_passed() -> None:
    found = distances(a=5.0, b=70.0)
    changed_at_s = next(now_s for now_s in range(60) if found.measured(A, 0.15, 1.0 + now_s))
    assert 10 <= changed_at_s <= 10 + SETTINGS.window_s
    assert found.tiers[:2] == ((B,), (A,))


def test_a_negative_sample_counts_as_no_distance() -> None:
    found = distances(a=5.0)
    found.measured(A, -0.01, 1.0)
    assert found.round_trip_s(A) == 0.0


base_ms = st.floats(1.0, 300.0)


@given(bases=st.lists(base_ms, min_size=4, max_size=4), data=st.data())
@settings(max_examples=examples(2))
def test_noise_below_the_margin_moves_nobody(bases: list[float], data: st.DataObject) -> None:
    found = distances(**dict(zip("abcd", bases, strict=True)))
    version = found.version
    noise = st.floats(0.0, 1.0)
    for now_s in range(60):
        endpoint = data.draw(st.sampled_from((A, B, C, D)))
        base = bases["abcd".index(endpoint.address[0])]
        margin = max(SETTINGS.change_margin_ms, SETTINGS.change_margin_share * base)
        found.measured(endpoint, (base + 0.999 * margin * data.draw(noise)) / 1000, float(now_s))
    assert found.version == version


@given(samples=st.lists(st.tuples(st.sampled_from((A, B, C)), st.floats(0.0, 1.0), st.floats(0.01, 5.0)), max_size=200))
@settings(max_examples=examples(2))
def test_no_noise_at_all_changes_tiers_more_often_than_the_settings_allow(
    samples: list[tuple[object, float, float]],
) -> None:
    """Each endpoint changes at most once in `change_after_s`, after its first samples."""
    found, now_s = Distances((A, B, C), SETTINGS), 0.0
    for endpoint, round_trip_s, step_s in samples:
        now_s += step_s
        found.measured(endpoint, round_trip_s, now_s)  # type: ignore[arg-type]
    assert found.version <= 3 * (FIRST + now_s / SETTINGS.change_after_s)


@given(samples=st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=60))
@settings(max_examples=examples(2))
def test_the_minimum_is_that_of_the_last_half_to_whole_window(samples: list[tuple[float, float]]) -> None:
    minimum, now_s, seen = WindowedMinimum(4.0), 0.0, []
    for value, step_s in samples:
        now_s += step_s
        seen.append((value, now_s))
        found = minimum.add(value, now_s)
        assert found <= min(each for each, at_s in seen if at_s > now_s - 2.0)
        assert found >= min(each for each, at_s in seen if at_s >= now_s - 4.0)


@given(bases=st.lists(base_ms, min_size=4, max_size=4, unique=True))
@settings(max_examples=examples(2))
def test_the_first_tier_has_the_nearest_and_every_tier_spans_at_most_its_margin(bases: list[float]) -> None:
    by_endpoint = dict(zip((A, B, C, D), bases, strict=True))
    tiers = distances(**dict(zip("abcd", bases, strict=True))).tiers
    assert sorted(each.address for tier in tiers for each in tier) == ["a:1", "b:2", "c:3", "d:4"]
    nearest = [min(by_endpoint[each] for each in tier) for tier in tiers]
    assert nearest == sorted(nearest)
    for tier in tiers:
        values = [by_endpoint[each] for each in tier]
        margin = max(SETTINGS.tier_margin_ms, SETTINGS.tier_margin_share * min(values))
        assert max(values) - min(values) <= margin * 1.000001
    for before, after in pairwise(tiers):
        margin = max(SETTINGS.tier_margin_ms, SETTINGS.tier_margin_share * min(by_endpoint[e] for e in before))
        assert min(by_endpoint[e] for e in after) > min(by_endpoint[e] for e in before) + margin * 0.999999


def test_the_tiers_are_numbered_from_the_nearest() -> None:
    found = distances(a=70.0, b=5.0, c=140.0, d=141.0)
    assert [found.tier(each) for each in (A, B, C, D)] == [1, 0, 2, 2]
