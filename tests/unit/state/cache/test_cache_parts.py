"""The parts of the completion cache: entries, their names and values, the memory of a process, and fingerprints."""

import json
import random
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.outcome import FinishReason
from completion_server.core.request import Caller, Mode, Request, Sampling, Snippet
from completion_server.engine.fingerprint import model_fingerprint
from completion_server.state.cache.keys import ANCHOR_CHARACTERS, MAX_ANCHORS, Anchor, RequestKeys, find_anchors
from completion_server.state.cache.local import MAX_ENTRIES, Entry, LocalCache, Terms
from completion_server.state.cache.shared import MAX_BYTES, Codec
from tests.unit.state.cache.cache_parts import ALICE, REQUEST, SECRET, entry_of, make_keys, request_of

MULTI_LINE = Terms()


def test_a_single_line_never_serves_behind_a_line_break() -> None:
    for line_break in ("\n", "\r", "\r\n"):
        entry = entry_of("x", f"a{line_break}b")
        assert entry.after(f"xa{line_break}", Terms(is_single_line=True)) is None
        assert entry.after(f"xa{line_break}", MULTI_LINE) is not None


def test_typed_text_takes_its_share_of_the_cost_along() -> None:
    found = entry_of("", "abcd").after("a", MULTI_LINE)
    assert found is not None
    assert (found.num_prompt_tokens, found.num_completion_tokens, found.engine_s) == (100, 15, 0.375)


def test_the_last_character_of_a_completion_is_a_token_still() -> None:
    found = entry_of("", "a" * 100).after("a" * 99, MULTI_LINE)
    assert found is not None
    assert (found.text, found.num_completion_tokens) == ("a", 1)


NAME = b"name"
CODEC = Codec(SECRET)
TEXTS = st.text(max_size=40) | st.text(alphabet="ab", min_size=500, max_size=600)


def value_of(entry: Entry) -> bytes:
    value = CODEC.encode(NAME, entry)
    assert value is not None
    return value


@given(TEXTS, TEXTS, st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_a_completion_comes_back_whole(tail: str, text: str, reason: FinishReason) -> None:
    entry = entry_of(tail, text, reason, made_at=1.5)
    assert CODEC.decode(NAME, value_of(entry)) == entry


@pytest.mark.parametrize("text", ["short", "a long text " * 100])
def test_a_changed_or_shortened_value_is_not_decoded(text: str) -> None:
    value = value_of(entry_of("tail", text))
    for at in range(len(value)):
        assert CODEC.decode(NAME, value[:at]) is None
        for bit in (1, 0x80):
            assert CODEC.decode(NAME, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]) is None
    assert CODEC.decode(NAME, value + b"\0") is None
    assert CODEC.decode(NAME, b"") is None


def test_a_value_belongs_to_its_key_and_secret() -> None:
    value = value_of(entry_of("tail", "text"))
    assert CODEC.decode(b"other", value) is None
    assert Codec(b"s" * 32).decode(NAME, value) is None


def test_an_encrypted_value_shows_no_text_and_never_repeats() -> None:
    entry = entry_of("CANARY", "CANARY")
    values = {value_of(entry) for _ in range(100)}
    assert len(values) == 100
    assert not any(b"CANARY" in value for value in values)


def test_long_completions_are_compressed_and_very_long_ones_are_not_shared() -> None:
    assert len(value_of(entry_of("", "a = b\n" * 500))) < 300
    assert CODEC.encode(NAME, entry_of("", "x" * MAX_BYTES)) is None


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


def test_a_sample_without_a_seed_and_a_single_call_without_a_user_have_no_name() -> None:
    assert KEYS.of(request_of("x", sampling=Sampling(0.5))) is None
    assert KEYS.of(request_of("x", caller=Caller("", "s", connection="c"))) is None


def test_anchors_are_line_starts_and_places_in_long_lines() -> None:
    assert find_anchors("", is_single_line=False) == [0]
    assert find_anchors("a\nbc\nd", is_single_line=False) == [5, 2, 0]
    assert find_anchors("a\nbc\n", is_single_line=False) == [5, 2, 0]
    assert find_anchors("a\nbc\nd", is_single_line=True) == [5]
    long = "ab\n" + "x" * (2 * ANCHOR_CHARACTERS + 1)
    assert find_anchors(long, is_single_line=True) == [3 + 2 * ANCHOR_CHARACTERS, 3 + ANCHOR_CHARACTERS, 3]
    assert len(find_anchors("\n" * 100, is_single_line=False)) == MAX_ANCHORS


def test_a_completion_for_the_same_cursor_takes_the_place_of_the_older() -> None:
    cache = LocalCache(100_000, 10.0)
    assert cache.put(b"a", entry_of("x", "old"), 0.0)
    assert cache.put(b"a", entry_of("x", "newer"), 1.0)
    assert not cache.put(b"a", entry_of("x", "newer"), 2.0)
    assert cache.get("x", [Anchor(0, b"a")], MULTI_LINE, 11.0) == entry_of("x", "newer")
    assert cache.num_entries == 1


def test_the_counted_bytes_are_those_that_python_takes() -> None:
    def fill(num_anchors: int, num_entries: int) -> LocalCache:
        cache = LocalCache(10**9, 10.0)
        for number in range(num_anchors):
            name = b"%024d" % number
            for tail in range(num_entries):
                text = f"return {number} + {tail} * value_of(it)"
                cache.put(name, Entry(f"{number}{tail}", text, entry_of("", "").reason, 0.1 + tail, 300, 400, 0.5), 0.1)
        return cache

    for num_entries in (1, 3, MAX_ENTRIES):
        tracemalloc.start()
        try:
            cache = fill(2000, num_entries)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.8 * taken < cache.num_bytes < 1.3 * taken


TENSOR_BYTES = 3_000_000


def write_model(folder: Path, seed: int = 1) -> Path:
    """Write a model with three tensors."""
    folder.mkdir(parents=True)
    spans = [(at * TENSOR_BYTES, (at + 1) * TENSOR_BYTES) for at in range(3)]
    tensors = {f"layer.{at}": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": spans[at]} for at in range(3)}
    header = json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode()
    content = random.Random(seed).randbytes(3 * TENSOR_BYTES)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "README.md").write_text("a model")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_a_copy_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model, tmp_path / "elsewhere" / "other-name")
    (copied / "README.md").write_text("a copy of a model")
    assert model_fingerprint(str(copied)) == model_fingerprint(str(model))


@pytest.mark.parametrize("tensor", [0, 1, 2])
def test_a_changed_tensor_is_noticed(model: Path, tensor: int) -> None:
    before = model_fingerprint(str(model))
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    begin = len(content) - (3 - tensor) * TENSOR_BYTES
    content[begin : begin + TENSOR_BYTES] = bytes(each ^ 1 for each in content[begin : begin + TENSOR_BYTES])
    weights.write_bytes(content)
    assert model_fingerprint(str(model)) != before


def test_other_files_sizes_and_names_are_noticed(model: Path) -> None:
    found = {model_fingerprint(str(model))}
    (model / "config.json").write_text('{"model_type": "qwen"}')
    found.add(model_fingerprint(str(model)))
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"0")
    found.add(model_fingerprint(str(model)))
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    found.add(model_fingerprint(str(model)))
    (model / "tokenizer.json").write_text("{}")
    found.add(model_fingerprint(str(model)))
    assert len(found) == 5


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 9000, (4).to_bytes(8, "little") + b"[1]x" + b"y" * 99])
def test_weights_of_any_format_have_a_fingerprint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    first = model_fingerprint(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(content + b"z")
    assert len({first, model_fingerprint(str(tmp_path))}) == 2


def test_a_hub_id_resolves_to_its_snapshot_or_its_name(model: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    assert model_fingerprint("org/name", None, str(hub)) == "org/name@main"
    assert model_fingerprint("org/name", "v1", str(hub)) == "org/name@v1"
    repo = hub / "models--org--name"
    commit = "a" * 40
    shutil.copytree(model, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    assert model_fingerprint("org/name", None, str(hub)) == model_fingerprint(str(model))
    assert model_fingerprint("org/name", commit, str(hub)) == model_fingerprint(str(model))


def test_a_model_without_files_is_named(tmp_path: Path) -> None:
    assert model_fingerprint(str(tmp_path / "missing")) == f"{tmp_path / 'missing'}@main"
    assert model_fingerprint("scripted") == "scripted@main"
