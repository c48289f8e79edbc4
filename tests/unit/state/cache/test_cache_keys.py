"""Names of completions: what they depend on, and where their anchors are."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.request import Caller, Mode, Request, Sampling, Snippet
from completion_server.state.cache.keys import ANCHOR_CHARACTERS, MAX_ANCHORS, RequestKeys, find_anchors
from tests.unit.state.cache.cache_parts import ALICE, REQUEST, make_keys, request_of

KEYS = make_keys()


def names_of(request: Request) -> RequestKeys:
    names = KEYS.of(request)
    assert names is not None
    return names


def nearest(request: Request) -> bytes:
    return names_of(request).anchors[0].name


OTHERS: list[dict[str, Any]] = [
    {"caller": replace(ALICE, user="bob")},
    {"caller": replace(ALICE, tenant="other")},
    {"caller": Caller("alice", "editor", "acme", peer="10.0.0.1")},
    {"document_uri": "file:///b.py"},
    {"language_id": "rust"},
    {"prefix": "y = 1\nx = "},
    {"suffix": "\n"},
    {"max_tokens": 65},
    {"mode": Mode.SINGLE_LINE},
    {"stop": ("x",)},
    {"stop": ("x", "y")},
    {"stop": ("xy",)},
    {"snippets": (Snippet("a", "b"),)},
    {"snippets": (Snippet("a", "b", 1.0),)},
    {"snippets": (Snippet("ab", ""),)},
    {"snippets": (Snippet("a", "b"), Snippet("", ""))},
    {"sampling": Sampling(0.5, seed=1)},
    {"sampling": Sampling(0.5, seed=2)},
    {"sampling": Sampling(0.25, seed=1)},
    {"sampling": Sampling(speculate=False)},
]


def test_everything_that_a_completion_depends_on_is_in_its_name() -> None:
    names = [nearest(REQUEST), *(nearest(replace(REQUEST, **fields)) for fields in OTHERS)]
    assert len(set(names)) == len(OTHERS) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "other"},
        {"sequence": 7},
        {"received_at": 5.0},
        {"caller": replace(ALICE, session="other", connection="other", stream=9)},
        {"sampling": Sampling(0.0, seed=3)},
        {"prefix": "x = 1 + "},
        {"prefix": ""},
    ],
)
def test_nothing_else_is(fields: dict[str, Any]) -> None:
    assert nearest(replace(REQUEST, **fields)) == nearest(REQUEST)


def test_the_secret_and_the_model_are_in_the_name() -> None:
    names = set()
    for keys in (KEYS, make_keys("mod", "el"), make_keys("model", ""), make_keys("model", secret=b"s" * 32)):
        found = keys.of(REQUEST)
        assert found is not None
        names.add(found.anchors[0].name)
    assert len(names) == 4


def test_a_sample_without_a_seed_has_no_name() -> None:
    assert KEYS.of(request_of("x", sampling=Sampling(0.5))) is None


def test_callers_without_a_name_share_with_their_own_stream_only() -> None:
    def names(caller: Caller) -> RequestKeys | None:
        return KEYS.of(replace(REQUEST, caller=caller))

    single, one, two = (Caller("", "s", connection="c", stream=stream) for stream in (0, 1, 2))
    assert names(single) is None
    first, second = names(one), names(two)
    assert first is not None
    assert second is not None
    assert not first.is_shared
    assert first.anchors != second.anchors
    assert names_of(REQUEST).is_shared


def test_users_of_a_tenant_share_if_their_prompts_do() -> None:
    keys = make_keys(is_tenant_wide=True)
    bob, nobody = replace(ALICE, user="bob"), Caller("", "s", "acme", connection="c")
    found = [keys.of(replace(REQUEST, caller=caller)) for caller in (ALICE, bob, nobody)]
    assert found[0] is not None
    assert found[0] == found[1] == found[2]
    other = keys.of(replace(REQUEST, caller=replace(ALICE, tenant="other")))
    assert other is not None
    assert other.anchors != found[0].anchors


def test_anchors_are_line_starts_and_places_in_long_lines() -> None:
    assert find_anchors("", is_single_line=False) == [0]
    assert find_anchors("a\nbc\nd", is_single_line=False) == [5, 2, 0]
    assert find_anchors("a\nbc\n", is_single_line=False) == [5, 2, 0]
    assert find_anchors("a\nbc\nd", is_single_line=True) == [5]
    long = "ab\n" + "x" * (2 * ANCHOR_CHARACTERS + 1)
    assert find_anchors(long, is_single_line=True) == [3 + 2 * ANCHOR_CHARACTERS, 3 + ANCHOR_CHARACTERS, 3]
    assert len(find_anchors("\n" * 100, is_single_line=False)) == MAX_ANCHORS


@given(st.text(alphabet="ab\n", max_size=60), st.text(alphabet="ab\n", max_size=4), st.booleans())
def test_text_that_is_typed_moves_no_anchor(prefix: str, typed: str, is_single_line: bool) -> None:
    mode = Mode.SINGLE_LINE if is_single_line else Mode.MULTI_LINE
    before, after = names_of(request_of(prefix, mode=mode)), names_of(request_of(prefix + typed, mode=mode))
    found = after.nearest(len(prefix))
    if is_single_line and "\n" in typed:
        assert found is None
    else:
        assert found == before.anchors[0]
