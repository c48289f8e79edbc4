"""Readers of folders, archives, JSON lines, Parquet and data sets."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from draft_model.core import PipelineError
from draft_model.corpus.collect import side_of
from draft_model.corpus.filters import Refusal, Rules, judge
from draft_model.corpus.licences import OWN, is_permissive
from draft_model.corpus.readers import (
    document_of,
    read_archive,
    read_folder,
    read_hugging_face,
    read_repositories,
    read_table,
)
from draft_model.corpus.store import Document, Side
from tests.unit.draft_model.tiny import different_source

METADATA = "Name: thing\nVersion: 1.0\nLicense-Expression: MIT\n"
CODE = Document("thing", "thing.py", "MIT", "x = 1\n", "1.0")
ROW = {"content": different_source(7), "max_stars_repo_name": "a/b", "max_stars_repo_path": "c.py", "licenses": ["mit"]}


def write_archive(path: Path, contents: dict[str, str]) -> Path:
    if path.suffix in {".zip", ".whl"}:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in contents.items():
                archive.writestr(name, text)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_folders_are_read_with_their_licences(repositories: Path, tmp_path: Path) -> None:
    own = list(read_folder(repositories / "one", (".py",)))
    assert [item.licence for item in own] == ["MIT"] * 8
    assert {item.repository for item in read_repositories(repositories, (".py",))} == {"one", "two", "three"}
    with pytest.raises(PipelineError, match="not a folder"):
        list(read_folder(tmp_path / "missing", (".py",)))


def test_a_wheel_is_read_with_its_own_metadata_and_not_with_that_of_a_package_that_it_vendors(tmp_path: Path) -> None:
    own = METADATA.replace("MIT", "GPL-3.0-only") + "\nWhat it does, in many words.\n"
    contents = {
        "thing.py": "x = 1\n",
        "_vendor/other.dist-info/METADATA": "Name: other\nVersion: 2\nLicense-Expression: MIT\n",
        "thing-1.0.dist-info/METADATA": own,
    }
    wheel = write_archive(tmp_path / "thing-1.0-py3-none-any.whl", contents)
    assert list(read_archive(wheel)) == [Document("thing", "thing.py", "GPL-3.0-only", "x = 1\n", "1.0")]


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize("inner", ["PKG-INFO", "thing.egg-info/PKG-INFO", "src/thing.egg-info/PKG-INFO"])
def test_a_source_archive_has_its_metadata_at_the_top_or_beside_the_code(
    inner: str, suffix: str, tmp_path: Path
) -> None:
    contents = {"thing-1.0/thing.py": "x = 1\n", f"thing-1.0/{inner}": METADATA}
    path = write_archive(tmp_path / f"thing-1.0{suffix}", contents)
    assert list(read_archive(path)) == [CODE]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PipelineError, match="not an archive"):
        list(read_archive(path))


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    "inner",
    [
        ("thing-main/tests/data/foo.egg-info/PKG-INFO",),
        ("thing-main/pkg/_vendor/x.egg-info/PKG-INFO",),
        ("thing-main/vendor/x.dist-info/METADATA",),
        ("tests/foo.egg-info/PKG-INFO",),
        ("thing-main/a.egg-info/PKG-INFO", "thing-main/b.egg-info/PKG-INFO"),
    ],
)
def test_a_source_archive_without_one_metadata_of_its_own_is_refused(
    inner: tuple[str, ...], suffix: str, tmp_path: Path
) -> None:
    path = write_archive(
        tmp_path / f"thing{suffix}", {"thing-main/thing.py": "x = 1\n", **dict.fromkeys(inner, METADATA)}
    )
    with pytest.raises(PipelineError, match="no package metadata of its own"):
        list(read_archive(path))


@pytest.mark.parametrize("kind", ["encrypted", "unknown method", "broken lzma"])
def test_an_archive_that_can_not_be_unpacked_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "thing.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("thing.py", "x = 1\n" * 100)
    data = bytearray(path.read_bytes())
    if kind == "encrypted":
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    elif kind == "unknown method":
        data[8], data[data.index(b"PK\x01\x02") + 10] = 99, 99
    else:
        data[42] = 0xFF  # The properties of the stream, after the header and the name.
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{path.name} is not an archive that can be read"):
        list(read_archive(path))


def test_the_current_folder_is_read_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours" / "sub").mkdir(parents=True)
    (tmp_path / "ours" / "a.py").write_text("x = 1\n")
    (tmp_path / "link").symlink_to("ours")
    monkeypatch.chdir(tmp_path / "ours")
    assert [item.repository for item in read_folder(Path(), (".py",))] == ["ours"]
    assert [item.repository for item in read_folder(Path("sub/.."), (".py",))] == ["ours"]
    assert [item.repository for item in read_folder(tmp_path / "link", (".py",))] == ["link"]


@pytest.mark.parametrize(
    ("name", "text", "licence"),
    [
        ("LICENSE", "Permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
        ("COPYING", "GNU GENERAL PUBLIC LICENSE", "unknown"),
        ("License.txt", "All rights reserved.", "unknown"),
        ("README", "Ours.", OWN),
        ("license.py", "x = 1", OWN),
    ],
)
def test_a_folder_counts_as_own_code_only_without_a_licence_file(
    name: str, text: str, licence: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert {item.licence for item in read_folder(tmp_path, (".py",))} == {licence}


def test_rows_of_known_data_sets_are_understood(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\n")
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "a.parquet")
    expected = Document("a/b", "c.py", "mit", ROW["content"])
    assert list(read_table(tmp_path / "a.jsonl")) == [expected]
    assert list(read_table(tmp_path / "a.parquet")) == [expected]
    assert document_of({"text": "x"}, "here").licence == "unknown"


def test_a_row_without_a_repository_is_one_of_its_own() -> None:
    texts = [different_source(number) for number in range(400)]
    rows = [document_of({"text": text, "path": "setup.py"}, "here") for text in texts]
    assert len({row.repository for row in rows}) == len(rows)
    assert {row.path for row in rows} == {"setup.py"}
    assert rows[0] == document_of({"text": texts[0], "path": "setup.py"}, "elsewhere")
    unnamed = [document_of({"text": text}, "here") for text in texts]
    assert {side_of(row.repository, 20.0) for row in unnamed} == set(Side)


def test_all_licences_of_a_row_must_be_permissive_even_if_one_is_a_choice() -> None:
    row = document_of({"text": "x", "licenses": ["GPL-3.0-only", "MIT OR Apache-2.0"]}, "here")
    assert not is_permissive(row.licence)
    assert document_of({"text": "x", "licenses": ["MIT OR Apache-2.0"]}, "here").licence == "MIT OR Apache-2.0"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines_may_be_gzipped_and_have_blank_ones(name: str, tmp_path: Path) -> None:
    lines = f"{json.dumps(ROW)}\r\n\n{json.dumps(ROW)}\n\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert [item.path for item in read_table(tmp_path / name)] == ["c.py", "c.py"]


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_file_is_too_small_and_no_missing_column(text: str | None) -> None:
    empty = document_of({"content": text, "path": "a/__init__.py", "license": "mit"}, "here")
    assert judge(empty, Rules()) is Refusal.SIZE


def test_a_data_set_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "set"
    folder.mkdir()
    with gzip.open(folder / "train.jsonl.gz", "wt") as lines:
        lines.write(json.dumps(ROW) + "\n")
    assert [item.path for item in read_hugging_face(str(folder))] == ["c.py"]


def test_a_parquet_file_that_breaks_off_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [different_source(number) for number in range(50)]}), path, compression="gzip")
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)  # In the first pages; their metadata is at the end.
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"a\.parquet can't be read after row"):
        list(read_table(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"{\n"),
        ("a.jsonl", b'{"body": 1}\n'),
        ("a.jsonl", b'{"text": 1}\n'),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": "\xff"}\n'),
        ("a.jsonl", b'{"text": "x"}\n[1]\n'),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n', mtime=0)[:-9]),
        ("a.parquet", b"no"),
        ("missing", None),
    ],
)
def test_an_invalid_source_names_itself(name: str, content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelineError, match=f"{name}(, row 1, has| can't be read after row|.* is not a file)"):
        list(read_table(tmp_path / name))
