"""Clients that clip the text before the cursor, with any text: the window is theirs, and its start moves seldom."""

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from completion_server.text.prompt.window import HEAD_CHARACTERS, find_end, find_window, is_line_start, num_clipped
from tests.support.examples import examples
from tests.unit.text.prompt.prompts import CURSOR, builder_of, layout_of, request_at

BUDGET = 700
LINES = st.lists(
    st.sampled_from(["x = 1\n", "\n", "def f():\n", "    return value\n", "    # the same\n", "é = '日本'\n", "}\n"]),
    min_size=1,
    max_size=12,
).map("".join)
REPEATED = st.builds(lambda unit, times: unit * times, LINES, st.integers(1, 60))
TEXTS = st.lists(st.one_of(LINES, REPEATED), min_size=1, max_size=8).map("".join)
ADVERSARIAL = st.one_of(
    TEXTS,
    st.sampled_from(["a", "\n", "a\n", "ab", " \n"]).flatmap(
        lambda unit: st.integers(0, 30_000).map(lambda times: unit * times)
    ),
)


class Counted(str):
    """A text that counts the searches in it."""

    __slots__ = ("num_searches",)

    def find(self, *arguments: object) -> int:  # type: ignore[override]
        self.num_searches = getattr(self, "num_searches", 0) + 1
        return super().find(*arguments)  # type: ignore[arg-type]


@given(text=ADVERSARIAL, earlier=ADVERSARIAL, start=st.integers(0, 40_000), left=st.integers(0, 40_000))
def test_a_window_is_found_with_few_searches(text: str, earlier: str, start: int, left: int) -> None:
    counted, head = Counted(text), earlier[start : start + HEAD_CHARACTERS]
    found = find_window(counted, start, head, left, 16_000)
    assert getattr(counted, "num_searches", 0) <= HEAD_CHARACTERS + 4
    if found:
        assert text.startswith(head, found)
        assert is_line_start(text, found)


@given(text=ADVERSARIAL, earlier=ADVERSARIAL)
def test_clipping_is_noticed_with_few_searches(text: str, earlier: str) -> None:
    counted = Counted(earlier)
    assert 0 <= num_clipped(text, counted) <= len(earlier)
    assert getattr(counted, "num_searches", 0) <= 4


@given(text=ADVERSARIAL, earlier=ADVERSARIAL, cut=st.integers(0, 2000), hidden=st.integers(0, 2000))
def test_the_end_that_is_found_is_in_reach(text: str, earlier: str, cut: int, hidden: int) -> None:
    counted = Counted(text)
    end = find_end(counted, earlier[:cut], hidden, 4000)
    assert end is None or 0 <= end <= min(len(text), 4000)
    assert getattr(counted, "num_searches", 0) <= 2


def number_lines(text: str) -> str:
    """Return the text with a number in front of every fourth line, so that no remembered head is in it twice."""
    lines = text.splitlines(keepends=True)
    return "".join(line if at % 4 else f"{at}: {line}" for at, line in enumerate(lines))


@settings(max_examples=examples(0.3), suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, size=st.integers(400, 2500), num_keys=st.sampled_from([1, 3]), does_count_lines=st.booleans())
def test_the_start_moves_in_big_steps(text: str, size: int, num_keys: int, *, does_count_lines: bool) -> None:
    # Lines that repeat for longer than a head can't be told apart: there the window may move with each line.
    builder = builder_of("embedded", max_prompt_tokens=BUDGET)
    document = number_lines(text * (1 + 4000 // len(text)))[:4000]
    begin = 4000 - 100 * num_keys
    windows = []
    for cursor in range(begin, 4000, num_keys):
        prefix = document[max(0, cursor - size) : cursor]
        if does_count_lines and len(prefix) < cursor:
            prefix = prefix[prefix.find("\n") + 1 :]
        request = request_at(prefix + CURSOR + "\n")
        prompt = builder.build(request)
        layout = layout_of(builder, request)
        assert prefix.endswith(layout.shown)
        assert len(prompt.token_ids) <= BUDGET
        windows.append(layout.shown.rpartition("\n")[0])
    moves = sum(not one.startswith(other) and not other.startswith(one) for one, other in pairwise(windows))
    least = min(size, BUDGET) * 0.1
    assert moves <= 3 + (4000 - begin) / least
