"""The picture of a run whose editors choose their region."""

import numpy as np
import pytest

from loadtest.report.drawing.canvas import svg_file
from loadtest.report.drawing.lanes import region_lanes
from loadtest.report.page import render_page
from loadtest.stats.run_stats import RunStats
from tests.unit.loadtest.run_stats import make_document, make_stats


@pytest.fixture
def stats() -> RunStats:
    """Return a run in which all editors are at `near`, but at `far` in the middle third."""
    found = make_stats(num_slices=9, per_slice=5, regions=("near", "far"))
    for place, piece in enumerate(found.slices):
        region = "far" if 3 <= place < 6 else "near"
        piece.counters.update({f"region/{region}/present": 20, f"region/{region}/intended": 5})
    found.slices[3].counters["errors"] = 4
    return found


def test_requests_and_editors_are_stacked_by_region(stats: RunStats) -> None:
    events = [(3.0, "near killed"), (6.0, "near back"), (99.0, "after the end")]
    axes = region_lanes(stats, 200.0, events, regions=("near", "far"), title="A loss")
    assert axes is not None
    figure = axes.get_figure(root=True)
    assert figure is not None
    requests, editors, ttft, lost = figure.axes
    assert [each.get_ylabel() for each in figure.axes] == ["requests/s", "editors", "TTFT, ms", "lost/s"]
    for stacked, height in ((requests, 5), (editors, 20)):
        near, far = (collection.get_paths()[0].vertices for collection in stacked.collections)
        assert np.max(np.asarray(near)[:, 1]) == height
        at_45 = np.asarray(far)[np.isclose(np.asarray(far)[:, 0], 4.5)]
        assert {float(y) for y in at_45[:, 1]} == {0.0, height}, "the middle third belongs to far alone"
    assert [line.get_label() for line in ttft.get_lines()][:3] == ["p50", "p99", "budget 200 ms"]
    assert [bar.get_height() for bar in lost.patches] == [0, 0, 0, 4, 0, 0, 0, 0, 0]
    text = svg_file(axes)
    for word in ("near killed", "near back", "A loss", "near", "far"):
        assert word in text
    assert "after the end" not in text


def test_slices_that_are_joined_show_the_mean_of_their_editors() -> None:
    many = make_stats(num_slices=400, per_slice=1)
    for piece in many.slices:
        piece.counters["region/local/present"] = 7
    axes = region_lanes(many, 200.0)
    assert axes is not None
    figure = axes.get_figure(root=True)
    assert figure is not None
    (stack,) = figure.axes[1].collections
    assert {float(y) for y in np.asarray(stack.get_paths()[0].vertices)[:, 1]} == {0.0, 7.0}


def test_a_run_whose_editors_have_a_region_of_their_own_has_no_such_picture() -> None:
    assert region_lanes(make_stats(num_slices=4, per_slice=4, regions=("us", "eu")), 200.0) is None


def test_the_page_of_a_run_has_it(stats: RunStats) -> None:
    events = [{"kind": "region_loss", "at_s": 3, "region": "near", "for_s": 3}]
    text = render_page(make_document(stats, events=events))
    assert "Where editors went" in text
    assert "region back: near" in text
