"""The page: one file that loads nothing over the network, with every picture, for any names in it."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from loadtest.report.canvas import bars_svg
from loadtest.report.charts import Series, region_lanes, ttft_distribution
from loadtest.report.document import RunDocument
from loadtest.report.page import render_page
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
    series = Series(stats)
    assert len(series.at_s) == 50
    assert series.per_s("intended")[1] == pytest.approx([1.0] * 50)
    assert series.at_s[0] == pytest.approx(2.5)


def test_requests_without_text_keep_a_distribution_below_one() -> None:
    stats = RunStats("ours", 10.0, 1.0)
    for _ in range(3):
        record(stats, 0.5, 0.1)
    stats.total.counters["pauses"] = 4
    (line,) = (each for each in ttft_distribution({"ours": stats}, 0).lines if each.get_label() == "ours")
    assert max(line.get_ydata()) == 0.75


def test_bars_are_an_svg_file_of_their_own() -> None:
    found = bars_svg({"this server": [(2.0, 1.0, 3.0)], "_<b>": [(1, math.nan, math.nan)]}, ["x"], "seen/s", "A & b")
    assert found.startswith("<?xml")
    for word in ("this server", "seen/s", "A &amp; b", "_&lt;b&gt;"):
        assert word in found


@pytest.fixture
def stats() -> RunStats:
    """Return a run in which all editors are at `near`, but at `far` in the middle third."""
    found = make_stats(num_slices=9, per_slice=5, regions=("anear", "far"))
    for place, piece in enumerate(found.slices):
        region = "far" if 3 <= place < 6 else "anear"
        piece.counters.update({f"region/{region}/present": 20, f"region/{region}/intended": 5})
    found.slices[3].counters["errors"] = 4
    return found


def test_requests_and_editors_are_stacked_by_region(stats: RunStats) -> None:
    events = [(3.0, "near killed"), (6.0, "near back"), (99.0, "after the end")]
    axes = region_lanes(stats, 200.0, events)
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
    assert [each.get_text() for each in requests.texts] == ["near killed", "near back"]


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
