"""Documents, and the stretches of them that are typed."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traffic.documents import (
    DocumentsError,
    SourceFile,
    find_stretch,
    library_files,
    read_documents,
)
from loadtest.traffic.sections import DocumentSettings

SMALL = DocumentSettings(prefix_chars=50, suffix_chars=20)
LINES = st.lists(st.text(st.sampled_from("ab (:\t"), max_size=30).map(lambda line: "    " + line), min_size=40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/second.py", "a.py", "c.rs", ".git/hidden.py"):
        (tmp_path / name).write_text(f"# {name}\n" + "x = 1\n" * 100)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe" * 1000)
    return tmp_path


def settings(folder: Path, pattern: str = "*.py", **fields: int) -> DocumentSettings:
    return SMALL.model_copy(update={"source": str(folder), "pattern": pattern, **fields})


def test_a_folder_gives_its_readable_files_that_match_in_an_order_of_the_seed(folder: Path) -> None:
    assert {each.path for each in read_documents(settings(folder), "0")} == {"a.py", "b/second.py"}
    assert [each.path for each in read_documents(settings(folder, "*.rs"), "0")] == ["c.rs"]
    assert [each.path for each in read_documents(settings(folder, "b/*.py"), "0")] == ["b/second.py"]
    for number in range(8):
        (folder / f"more{number}.py").write_text("y = 2\n" * 100)
    orders = [[each.path for each in read_documents(settings(folder), seed)] for seed in ("0", "0", "1")]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("pattern", "fields", "says"),
    [("*.go", {}, "has 0 readable files that match '\\*.go'"), ("*.py", {"prefix_chars": 5000}, "none with more than")],
)
def test_a_folder_without_usable_files_is_an_error(
    folder: Path, pattern: str, fields: dict[str, int], says: str
) -> None:
    with pytest.raises(DocumentsError, match=says):
        read_documents(settings(folder, pattern, **fields), "0")


def test_the_library_is_real_code_without_generated_tables() -> None:
    found = read_documents(DocumentSettings(), "0")
    assert len(found) > 100
    assert not any(each.path.startswith(("encodings/", "test/")) for each in found)
    assert {each.path: each.text for each in found}.items() <= library_files(1_000_000, 0).items()


@given(LINES, st.integers(0, 30), st.integers())
def test_a_stretch_is_typed_in_its_place(lines: list[str], num_keys: int, seed: int) -> None:
    document = SourceFile("x.py", "\n".join(lines * 3))
    found = find_stretch(document, num_keys, SMALL, random.Random(seed))
    if found is None:
        return
    text = document.text
    assert found.before + found.after in text
    assert found.ends[0] == SMALL.prefix_chars
    assert len(found.ends) == num_keys + 1
    assert len(found.after) == SMALL.suffix_chars
    assert len(found.before) >= found.ends[-1] + 200, "there is a truth after the last key"
    assert found == find_stretch(document, num_keys, SMALL, random.Random(seed))
    for end, following in zip(found.ends, found.ends[1:], strict=False):
        key, brought = found.before[end], found.before[end + 1 : following]
        assert brought == "" if key != "\n" else not brought.strip(" \t")
        assert key != "\n" or found.before[following] not in " \t", "Enter brings all of the indentation"


def test_some_stretch_is_found_where_there_is_room() -> None:
    document = SourceFile("x.py", "    x = 1\n" * 100)
    assert find_stretch(document, 20, SMALL, random.Random(0)) is not None
    assert find_stretch(document, 400, SMALL, random.Random(0)) is None
