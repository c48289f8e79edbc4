"""The page: one file that loads nothing over the network, with every picture, for any names in it."""

import re
from html.parser import HTMLParser

import pytest

from loadtest.report.document import RunDocument
from loadtest.report.page import render_page
from loadtest.stats import RunStats
from tests.unit.loadtest.run_stats import make_document, make_stats

HOSTILE = '<script>alert(1)</script> & "quoted" $x^2$ {{ 7 * 7 }} --> _under'


class Page(HTMLParser):
    """Reads a page and keeps the elements that a browser acts on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

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
        *("budget 200 ms", "(the user typed on before the answer had ended)", "editors not connected at the end"),
        "of characters shown, those accepted",
    ):
        assert words in page.text
    assert "INVALID" not in page.text


def test_it_is_one_file_that_loads_nothing(document: RunDocument, text: str) -> None:
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(page.tags)
    assert not re.search(r"@import|https?://|javascript:", text)
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    wanted = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert set() < wanted <= set(ids)
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
