"""The page: one file that loads nothing over the network, with every picture, for any names in it."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from loadtest.processes.meter import ProcessUsage
from loadtest.report.canvas import curve_picture, svg_file, svg_for_page
from loadtest.report.charts import Series, region_lanes, ttft_distribution
from loadtest.report.document import RunDocument
from loadtest.report.page import render_page
from loadtest.search import Point, Sweep, render_sweep, slope, sweep_table
from loadtest.stats import RunStats
from tests.unit.loadtest.run_stats import make_document, make_stats, record

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = '<script>alert(1)</script> & "quoted" $x^2$ {{ 7 * 7 }} --> _under'


class Page(HTMLParser):
    """Reads a page and keeps the elements that a browser acts on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def document() -> RunDocument:
    events = [{"kind": "region_loss", "at_s": 4, "region": "us", "for_s": 2}, {"kind": "reconnect", "at_s": 9}]
    return make_document(
        make_stats(1, num_slices=10, per_slice=10, regions=("us", "eu")),
        make_stats(2, num_slices=10, per_slice=10, target="theirs", has_stages=False),
        gates=("error_rate<1,usd_per_completion<1",),
        events=events,
        description="Editors that type.",
    )


@pytest.fixture(scope="module")
def text(document: RunDocument) -> str:
    return render_page(document)


def test_it_has_every_picture_and_word(text: str) -> None:
    captions = re.findall(r"<figcaption><b>([^<]*)</b>", text)
    of_each = ["Asked and seen", "Latency over time", "What became of the requests"]
    overlays = ["Completions seen", "TTFT of pauses, p95", "How soon the first text came"]
    assert captions == [*overlays, *of_each, "TTFT by cause", "TTFT by region", *of_each]
    page = Page(text)
    assert page.tags.count("svg") == len(captions)
    for words in (
        *("p95", "superseded", "prefill", "front end and network", "region loss: us", "reconnect", "budget 200 ms"),
        *("pause_ttft_ms_p95", "has no value in this run", "FAILED", "passed", "Editors that type.", "1.2.3"),
        *("What the words mean", "a pause is a wait of 500 ms or more", "SLO: text in 200 ms, end in 1000 ms"),
        "those hung up on by the editor (the user typed on before the answer had ended)",
        "editors not connected at the end",
    ):
        assert words in page.text
    assert "INVALID" not in page.text


def test_it_is_one_file_that_loads_nothing_and_takes_the_colours_of_its_reader(
    document: RunDocument, text: str
) -> None:
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(page.tags)
    assert not [value for _name, value in page.attributes if re.search(r"https?:|//|javascript:", value)]
    assert not re.search(r"@import|https?://", text)
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    assert len(set(page.ids)) == len(page.ids)
    wanted = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert wanted
    assert wanted <= set(page.ids)
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert "currentColor" in svg
    assert "var(--faint)" in svg
    assert not re.search(r"#f{6}|#0{6}|white|black", svg)
    assert "prefers-color-scheme: dark" in text
    assert render_page(document) == text, "the same document gives the same page"


def test_names_are_text_and_nothing_else() -> None:
    stats = make_stats(1, num_slices=8, per_slice=5, target=HOSTILE, regions=(HOSTILE, "b"))
    stats.total.counters[f"error/{HOSTILE}"] = 3
    document = make_document(stats, make_stats(2, num_slices=8, per_slice=5, target="_other"), name=HOSTILE)
    text = render_page(document)
    page = Page(text)
    assert "script" not in page.tags
    assert "<script>" not in text
    assert HOSTILE in page.text
    assert text.count("_other") > 4


def test_the_reasons_why_a_run_is_invalid_come_first_and_a_run_without_anything_has_a_page() -> None:
    stats = make_stats(1, num_slices=8, per_slice=5)
    stats.num_workers = 3
    text = render_page(make_document(stats))
    assert "ours: INVALID, of 3 workers, number 1, 2 is missing" in Page(text).text
    assert text.index("INVALID") < text.index("What editors felt")
    empty = Page(render_page(make_document(RunStats("ours", 5.0, 1.0, workers=frozenset({0})))))
    assert "no request was intended" in empty.text
    assert "Times, ms" not in empty.text
    assert "What editors felt" not in Page(render_page(make_document())).text


def test_many_slices_become_few_points() -> None:
    stats = RunStats("ours", 250.0, 1.0)
    for second in range(250):
        record(stats, second + 0.5, 0.1)
    series = Series.of(stats)
    assert len(series.at_s) == 50
    assert series.per_s("intended") == pytest.approx([1.0] * 50)
    assert series.at_s[0] == pytest.approx(2.5)


def test_requests_without_text_keep_a_distribution_below_one() -> None:
    stats = RunStats("ours", 10.0, 1.0)
    for _ in range(3):
        record(stats, 0.5, 0.1)
    stats.total.counters["pauses"] = 4
    (line,) = (each for each in ttft_distribution({"ours": stats}, 0).lines if each.get_label() == "ours")
    assert max(line.get_ydata()) == 0.75


def test_a_curve_is_an_svg_file_of_its_own() -> None:
    found = svg_file(
        curve_picture({"this server": [(1, 2.0), (2, 3.0)], "_<b>": [(1, 1.0)]}, "load", "seen/s", "Title & more")
    )
    assert found.startswith("<?xml")
    for word in ("this server", "load", "seen/s", "Title &amp; more", "_&lt;b&gt;"):
        assert word in found
    inside = svg_for_page(curve_picture({"a": [(1, 2.0)]}, "x", "y"), "one")
    assert inside.startswith('<svg role="img" aria-label="one"')
    assert "http" not in inside


def points() -> tuple[Point, ...]:
    return tuple(
        Point(target, sessions, {"seen_per_s": sessions / 10, "pause_ttft_ms_p95": 50.0}, usage=usage)
        for sessions in (200, 100)
        for target, usage in (("ours", ProcessUsage(sessions / 500, 2**20 + sessions * 2048)), ("theirs", None))
    )


def test_a_sweep_has_a_page_and_a_table() -> None:
    sweep = Sweep("1.2.3", {"name": HOSTILE, "criteria": {"slo_ttft_ms": 200}}, "2026-01-02T03:04:05+00:00", points())
    text = render_sweep(sweep)
    page = Page(text)
    assert page.tags.count("svg") == 4
    assert "ours: 2.0 KiB per session" in page.text
    assert "ours: 2.0 cores per 1,000 sessions" in page.text
    assert "<script>" not in text
    rows = [row[:2] for row in sweep_table(sweep).rows]
    assert rows == [("ours", "100"), ("theirs", "100"), ("ours", "200"), ("theirs", "200")]


def test_a_sweep_names_the_reasons_why_a_run_is_invalid_and_its_json_has_no_nan() -> None:
    point = Point("ours", 100, {"seen_per_s": math.nan}, ("the generator was late",))
    sweep = Sweep("1", {"name": "s"}, "now", (point,), interrupted=True)
    page = Page(render_sweep(sweep))
    assert "ours at 100 sessions: INVALID, the generator was late" in page.text
    assert "the sweep was interrupted" in page.text
    (written,) = sweep.as_json()["points"]
    assert (written["is_valid"], written["cpu_cores"], written["peak_rss_bytes"]) == (False, None, None)
    assert written["figures"] == {"seen_per_s": None}


def test_growth_is_that_of_the_line_that_fits_best() -> None:
    assert slope([(1, 3.0), (2, 5.0), (3, 7.0)]) == pytest.approx(2.0)
    assert math.isnan(slope([(1, 3.0), (1, 4.0)]))


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


def test_only_the_page_of_a_run_whose_editors_choose_their_region_has_it(stats: RunStats) -> None:
    events = [{"kind": "region_loss", "at_s": 3, "region": "near", "for_s": 3}]
    text = render_page(make_document(stats, events=events))
    assert "Where editors went" in text
    assert "region back: near" in text
    assert region_lanes(make_stats(num_slices=4, per_slice=4, regions=("us", "eu")), 200.0) is None
