"""The page: one file that loads nothing over the network, with every picture, for any names in it."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from loadtest.report.canvas import bars_svg
from loadtest.report.charts import Series, distribution, latencies, presence
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
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def ids(self) -> list[str]:
        return [value for name, value in self.attributes if name == "id"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
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
    chosen = make_stats(1, num_slices=10, per_slice=10, regions=("us", "eu"))
    for piece in chosen.slices:
        piece.counters.update({"region/us/present": 20, "region/eu/present": 1})
    return make_document(
        chosen,
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
    assert captions == [*overlays, "Where editors went", *of_each, "TTFT by cause", *of_each]
    page = Page(text)
    assert page.tags.count("svg") == len(captions)
    for words in (
        *("p95", "superseded", "prefill", "front end and network", "region loss: us", "region back: us", "reconnect"),
        *("pause_ttft_ms_p95", "has no value in this run", "FAILED", "passed", "Editors that type.", "1.2.3"),
        *("What the words mean", "a pause is a wait of 500 ms or more", "SLO: text in 200 ms, end in 1000 ms"),
        *("budget 200 ms", "(the user typed on before the answer had ended)", "editors not connected at the end"),
        "of characters shown, those accepted",
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
    assert set() < wanted <= set(page.ids)
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert "currentColor" in svg
    assert "var(--faint)" in svg
    assert not re.search(r"#f{6}|#0{6}|white|black", svg)
    assert "prefers-color-scheme: dark" in text
    assert render_page(document) == text, "the same document gives the same page"


def test_names_are_text_and_nothing_else() -> None:
    stats = make_stats(1, num_slices=8, per_slice=5, target=HOSTILE, regions=(HOSTILE, "b"))
    stats.total.counters[f"error/{HOSTILE}"] = 3
    other = make_stats(2, num_slices=8, per_slice=5, target="_other")
    text = render_page(make_document(stats, other, name=HOSTILE))
    assert "script" not in Page(text).tags
    assert HOSTILE in Page(text).text
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
    assert (len(series.at_s), series.at_s[0]) == (50, pytest.approx(2.5))
    assert series.per_s("intended")[1] == pytest.approx([1.0] * 50)


def test_a_single_slice_is_a_mark_in_the_latency_over_time() -> None:
    stats = RunStats("ours", 0.5, 1.0)
    record(stats, 0.2, 0.1)
    lines = latencies(stats, 200.0, ()).lines
    assert [len(line.get_xdata()) for line in lines[:3]] == [1, 1, 1]
    assert all(line.get_marker() == "." for line in lines[:3])


def test_requests_without_text_keep_a_distribution_below_one_but_not_those_that_no_target_got() -> None:
    stats = RunStats("ours", 10.0, 1.0)
    for _ in range(3):
        record(stats, 0.5, 0.1)
    stats.total.counters.update({"pauses": 6, "pauses_cached": 5})
    (line,) = (each for each in distribution({"ours": stats}, 0).lines if each.get_label() == "ours")
    assert max(line.get_ydata()) == 3 / (3 + 6 - 5)


def test_bars_are_an_svg_file_of_their_own() -> None:
    found = bars_svg({"this server": [(2.0, 1.0, 3.0)], "_<b>": [(1, math.nan, math.nan)]}, ["x"], "seen/s", "A & b")
    assert found.startswith("<?xml")
    for word in ("this server", "seen/s", "A &amp; b", "_&lt;b&gt;"):
        assert word in found


def test_editors_are_stacked_by_region_and_joined_slices_show_their_mean() -> None:
    stats = make_stats(num_slices=600, per_slice=1, regions=("a", "b"))
    for place, piece in enumerate(stats.slices):
        piece.counters["region/b/present" if 200 <= place < 400 else "region/a/present"] += 7
    axes = presence(stats, [(200.0, "a killed"), (400.0, "a back"), (999.0, "after the end")])
    assert axes is not None
    first, second = (np.asarray(each.get_paths()[0].vertices) for each in axes.collections)
    assert {float(y) for y in first[:, 1]} == {0.0, 7.0}
    assert {float(y) for y in second[np.isclose(second[:, 0], 305.0)][:, 1]} == {0.0, 7.0}, "b alone"
    assert [each.get_text() for each in axes.texts] == ["a killed", "a back"]
    assert presence(make_stats(num_slices=4, per_slice=4, regions=("us", "eu")), ()) is None
