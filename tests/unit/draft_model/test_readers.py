"""Readers of folders, archives, JSON lines, Parquet and data sets."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from draft_model.core import PipelineError
from draft_model.corpus.collect import side_of
from draft_model.corpus.filters import Refusal, Rules, judge
from draft_model.corpus.licences import OWN
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


def test_a_wheel_is_read_with_its_own_metadata_and_not_with_that_of_a_package_that_it_vendors(tmp_path: Path) -> None:
    own = METADATA.replace("MIT", "GPL-3.0-only") + "\nWhat it does, in many words.\n"
    contents = {
        "thing.py": "x = 1\n",
        "_vendor/other.dist-info/METADATA": "Name: other\nVersion: 2\nLicense-Expression: MIT\n",
        "thing-1.0.dist-info/METADATA": own,
    }
    wheel = write_archive(tmp_path / "thing-1.0-py3-none-any.whl", contents)
    assert list(read_archive(wheel)) == [Document("thing", "thing.py", "GPL-3.0-only", "x = 1\n", "1.0")]


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


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    ("places", "is_read"),
    [
        (("PKG-INFO",), True),
        (("thing.egg-info/PKG-INFO",), True),
        (("src/thing.egg-info/PKG-INFO",), True),
        (("tests/data/foo.egg-info/PKG-INFO",), False),
        (("vendor/x.dist-info/METADATA",), False),
        (("a.egg-info/PKG-INFO", "b.egg-info/PKG-INFO"), False),
    ],
)
def test_a_source_archive_has_one_metadata_of_its_own_at_the_top_or_beside_the_code(
    places: tuple[str, ...], is_read: bool, suffix: str, tmp_path: Path
) -> None:
    metadata = {f"thing-1.0/{place}": METADATA for place in places}
    path = write_archive(tmp_path / f"thing-1.0{suffix}", {"thing-1.0/thing.py": "x = 1\n", **metadata})
    if is_read:
        assert list(read_archive(path)) == [CODE]
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PipelineError, match="not an archive" if is_read else "no package metadata of its own"):
        list(read_archive(path))


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_an_archive_that_can_not_be_unpacked_is_named(is_encrypted: bool, tmp_path: Path) -> None:
    path = tmp_path / "thing.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("thing.py", "x = 1\n" * 100)
    data = bytearray(path.read_bytes())
    if is_encrypted:
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    else:
        data[42] = 0xFF  # The properties of the compressed stream, after the header and the name.
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"thing\.zip is not an archive that can be read"):
        list(read_archive(path))


@pytest.mark.parametrize(
    ("name", "text", "licence"),
    [
        ("LICENSE", "Permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
        ("COPYING", "GNU GENERAL PUBLIC LICENSE", "unknown"),
        ("License.txt", "All rights reserved.", "unknown"),
        ("license.py", "x = 1", OWN),
    ],
)
def test_a_folder_is_read_under_its_licence_or_as_own_code_without_a_licence_file(
    name: str, text: str, licence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / name).write_text(text)
    (tmp_path / "ours" / "a.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path / "ours")
    assert {(item.repository, item.licence) for item in read_folder(Path(), (".py",))} == {("ours", licence)}
    in_folders = "unknown" if licence == OWN else licence
    assert {item.licence for item in read_repositories(tmp_path, (".py",))} == {in_folders}
    with pytest.raises(PipelineError, match="not a folder"):
        list(read_folder(tmp_path / "missing", (".py",)))


def test_rows_of_known_data_sets_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lines = f"{json.dumps(ROW)}\r\n\n{json.dumps(ROW)}\n\n".encode()
    (tmp_path / "set").mkdir()
    packed = tmp_path / "set" / "train.jsonl.gz"
    packed.write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl").write_bytes(lines)
    pq.write_table(pa.Table.from_pylist([ROW, ROW]), tmp_path / "a.parquet")
    streams = [*map(read_table, (tmp_path / "a.jsonl", packed, tmp_path / "a.parquet"))]
    for stream in (*streams, read_hugging_face(str(tmp_path / "set"))):
        assert list(stream) == [Document("a/b", "c.py", "mit", ROW["content"])] * 2


def test_a_row_without_a_repository_is_one_of_its_own_by_its_text() -> None:
    texts = [different_source(number) for number in range(100)]
    rows = [document_of({"text": text, "path": "setup.py"}, "here") for text in texts]
    assert len({row.repository for row in rows}) == len(rows)
    assert rows[0] == document_of({"text": texts[0], "path": "setup.py"}, "elsewhere")
    assert {side_of(row.repository, 20.0) for row in rows} == set(Side)


@pytest.mark.parametrize(
    ("row", "licence"),
    [
        ({}, "unknown"),
        ({"licenses": ["MIT OR Apache-2.0"]}, "MIT OR Apache-2.0"),
        ({"licenses": ["GPL-3.0-only", "MIT OR Apache-2.0"]}, "GPL-3.0-only AND (MIT OR Apache-2.0)"),
    ],
)
def test_all_licences_of_a_row_count_and_an_empty_file_is_refused_for_its_size(
    row: dict[str, Any], licence: str
) -> None:
    assert document_of({"text": "x", **row}, "here").licence == licence
    for text in ("", None):
        assert judge(document_of({"content": text, "path": "a.py", "license": "mit"}, "here"), Rules()) is Refusal.SIZE
