"""Reading sources, judging files, the split, and the corpus on disk."""

import gzip
import io
import json
import random
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from draft_model.core.errors import PipelineError
from draft_model.corpus.collect import CorpusSettings, collect_corpus
from draft_model.corpus.documents import Document, Side
from draft_model.corpus.duplicates import NearDuplicates
from draft_model.corpus.filters import Refusal, Rules, judge
from draft_model.corpus.licences import OWN, is_permissive, licence_of_text, read_licence
from draft_model.corpus.readers import (
    STDLIB,
    document_of,
    licence_of_metadata,
    read_archive,
    read_folder,
    read_hugging_face,
    read_installed,
    read_jsonl,
    read_parquet,
    read_repositories,
    read_stdlib,
)
from draft_model.corpus.sources import FETCHED, HELD_OUT, INSTALLED, OTHER_NAMES, fetch_wheels, read_embedded_sources
from draft_model.corpus.split import part_of, side_of
from draft_model.corpus.store import Corpus
from tests.unit.draft_model.tiny import different_source

METADATA = "Name: thing\nVersion: 1.0\nLicense-Expression: MIT\n"
LOCKED = Path(__file__).parents[3] / "requirements"
APACHE = "Apache License Version 2.0, January 2004"
BSD = "Redistribution and use in source and binary forms, with or without modification, are permitted provided that"
MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy"
ROW = {"content": different_source(7), "max_stars_repo_name": "a/b", "max_stars_repo_path": "c.py", "licenses": ["mit"]}


def document(path: str = "pkg/mod.py", text: str = "", licence: str = "MIT") -> Document:
    return Document("pkg", path, licence, text or different_source(1))


def write_archive(path: Path, contents: dict[str, str]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in contents.items():
                archive.writestr(name, text)
        return
    with tarfile.open(path, "w:gz") as tar:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("licence", "is_fine"),
    [
        ("MIT", True),
        ("apache-2.0", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Commons-Clause", False),
        ("MIT OR Apache-2.0 for research", False),
        ("BSD-2-Clause-FreeBSD", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND BSD-3-Clause", False),
        ("MPL-2.0", False),
        ("unknown", False),
        ("", False),
        (OWN, True),
    ],
)
def test_permissive_licences_alone_are_fine(licence: str, is_fine: bool) -> None:
    assert is_permissive(licence) is is_fine


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("MIT License", "MIT"),
        ("BSD License", "BSD-3-Clause"),
        ("Simplified BSD", "BSD-2-Clause"),
        ("Apache Software License", "Apache-2.0"),
        ("GNU Lesser General Public License v3 (LGPLv3)", "GNU Lesser General Public License v3 (LGPLv3)"),
        ("mit", "mit"),
        ("The Unlicense (Unlicense)", "Unlicense"),
        ("UNLICENSED", "UNLICENSED"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("Artistic-2.0 or MIT", "Artistic-2.0 OR MIT"),
        ("MIT/Apache-2.0", "Apache-2.0"),
        ("Apache-2.0+", "Apache-2.0"),
        ("BSD without advertising clause", "BSD-3-Clause"),
        ("BSD-derived (http://www.repoze.org/LICENSE.txt)", "BSD-3-Clause"),
        ('BSD 3-Clause "New" or "Revised" License', "BSD-3-Clause"),
        ("Modified BSD License.", "BSD-3-Clause"),
        ("The MIT License (MIT)", "MIT"),
        ("Apache License, Version 2.0", "Apache-2.0"),
    ],
)
def test_what_packages_say_is_read_as_a_name(said: str, meant: str) -> None:
    assert read_licence(said) == meant


@pytest.mark.parametrize(
    ("classifier", "licence"),
    [
        ("Academic Free License (AFL)", "AFL-3.0"),
        ("Apache Software License", "Apache-2.0"),
        ("BSD License", "BSD-3-Clause"),
        ("Blue Oak Model License (BlueOak-1.0.0)", "BlueOak-1.0.0"),
        ("Boost Software License 1.0 (BSL-1.0)", "BSL-1.0"),
        ("CC0 1.0 Universal (CC0 1.0) Public Domain Dedication", "CC0-1.0"),
        ("CMU License (MIT-CMU)", "MIT-CMU"),
        ("Historical Permission Notice and Disclaimer (HPND)", "HPND"),
        ("ISC License (ISCL)", "ISC"),
        ("MIT License", "MIT"),
        ("MIT No Attribution License (MIT-0)", "MIT-0"),
        ("PostgreSQL License", "PostgreSQL"),
        ("Python License (CNRI Python License)", "CNRI-Python"),
        ("Python Software Foundation License", "PSF-2.0"),
        ("The Unlicense (Unlicense)", "Unlicense"),
        ("Universal Permissive License (UPL)", "UPL-1.0"),
        ("University of Illinois/NCSA Open Source License", "NCSA"),
        ("Zero-Clause BSD (0BSD)", "0BSD"),
        ("zlib/libpng License", "Zlib"),
    ],
)
def test_the_permissive_classifiers_are_known(classifier: str, licence: str) -> None:
    assert licence_of_metadata({"classifier": [f"License :: OSI Approved :: {classifier}"]}) == licence
    assert is_permissive(licence)


@pytest.mark.parametrize(
    "said",
    [
        "BSD-4-Clause",
        "bsd-4-clause",
        "BSD-4-Clause License",
        "4-Clause BSD License",
        "Original BSD",
        "BSD with advertising",
        "BSD-Protection",
        "BSD-3-Clause-No-Nuclear-License",
        "BSD-3-Clause-Attribution",
        "Apache-1.1",
        "Apache License 1.1",
        "Apache-2.0 with Commons Clause",
        "MIT + Commons-Clause",
        "BUSL-1.1, Apache-2.0 from 2030",
        "BSL 1.1 (Apache 2.0 after four years)",
        "SSPL; parts are MIT",
        "Elastic License 2.0, clients Apache",
        "FSL-1.1-MIT",
        "MIT-advertising",
        "MIT (non-commercial)",
        "MIT, free for non-commercial use",
        "MIT, noncommercial",
        "Apache 2.0 for non-commercial use",
        "MIT OR Apache-2.0 for research",
        "BSD, non commercial use",
        "MIT License (research-only)",
        "MIT, personal use",
        "MIT 非商用",
        "Modified MIT License",
        "MIT-derived",
        "Proprietary, bundles MIT code",
        "Llama 3 Community License; code MIT",
        "CDDL 1.0, MIT",
        "EUPL 1.2; parts MIT",
        "GFDL/MIT",
        "MIT and CeCILL-C",
        "OpenRAIL++-M (MIT code)",
        "Apache License, Version 1",
        "https://mit.edu/licence",
    ],
)
def test_what_is_near_a_permissive_licence_stays_what_it_is(said: str) -> None:
    assert read_licence(said) == said
    assert not is_permissive(said)


@pytest.mark.parametrize(
    "text",
    [
        f"Business Source License 1.1\nChange License: {APACHE}",
        f'"Commons Clause" License Condition v1.0\n{APACHE}',
        f"Server Side Public License\n{APACHE}",
        f"Elastic License 2.0. Clients: {APACHE}",
        f"Functional Source License, Version 1.1. Grant of future licence: {APACHE}",
        f"{BSD}: 3. All advertising materials mentioning features must say so. 4. Neither the name",
        f"{BSD}: The documentation must include the following acknowledgment: this product includes software of",
        f"{BSD}: You acknowledge that this software is not licensed for any nuclear facility. Neither the name",
        f"{MIT}. The Software shall be used for Good, not Evil.",
        "Redistribution and use in source and binary forms are permitted for non-commercial purposes",
        f"{MIT}, for research purposes only",
        f"{MIT}. Parts are under the GNU Library General Public License",
        f"{MIT}, for non-commercial purposes",
        f"{MIT}. It may not be used for commercial purposes",
        f"{MIT}. Commercial use is prohibited.",
        f"{MIT}. For commercial use, please contact us.",
        f"{MIT}, for personal, noncommercial use",
        "Permission to use, copy, modify, and distribute this software for any purpose other than commercial",
        f"End User Licence Agreement. You may not copy it. It contains what others wrote. {MIT}",
        "Our agreement. You may not copy it. It contains software under the Apache License, Version 2.0.",
        f"Our agreement. You may not copy it. It contains what others wrote. {MIT}",
        f"Our agreement. {'It is between us. ' * 60} It contains other software: {MIT}",
        f"GNU GPL v3; parts: {MIT}",
        f"Eclipse Public License - v 2.0. Parts: {MIT}",
        f"COMMON DEVELOPMENT AND DISTRIBUTION LICENSE. Parts: {MIT}",
        f"European Union Public Licence v. 1.2. Parts: {MIT}",
        f"Attribution-NonCommercial 4.0 International. Parts: {MIT}",
        f"CC BY-SA 4.0, parts: {MIT}",
    ],
)
def test_a_text_that_restricts_is_no_permissive_one(text: str) -> None:
    assert licence_of_text(text) == ""
    assert not is_permissive(licence_of_metadata({"license": text}))


def test_a_restriction_outweighs_the_classifiers() -> None:
    classifier = ["License :: OSI Approved :: Apache Software License"]
    assert licence_of_metadata({"license": "Apache 2.0 with Commons Clause", "classifier": classifier}) == "unknown"
    assert licence_of_metadata({"license": "MIT OR BUSL-1.1", "classifier": classifier}) == "Apache-2.0"


@pytest.mark.parametrize(
    "said", ["GPLv3", "MIT (non-commercial)", "Proprietary", "EUPL 1.2", "CC-BY-NC", f"GNU AGPL. {MIT}"]
)
def test_what_is_said_is_asked_before_the_classifiers(said: str) -> None:
    classifier = ["License :: OSI Approved :: MIT License"]
    assert licence_of_metadata({"license": said, "classifier": classifier}) == "unknown"


def test_a_text_that_lists_what_it_bundles_leaves_it_to_the_classifiers() -> None:
    bundled = "GNU General Public License: only occasionally and noncommercially; make it effectively proprietary"
    said = f"{BSD} the following conditions are met. {'As is. ' * 200} Bundled: {bundled}"
    classifier = ["License :: OSI Approved :: BSD License"]
    assert licence_of_metadata({"license": said, "classifier": classifier}) == "BSD-3-Clause"
    assert licence_of_metadata({"license": said}) == "unknown"


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (APACHE, "Apache-2.0"),
        (f"{BSD}: Neither the name of it may be used to endorse or promote products", "BSD-3-Clause"),
        (f"{BSD} the following conditions are met", "BSD-2-Clause"),
        (f"{MIT}. The name of it shall not be used in advertising or otherwise to promote", "MIT"),
        ("This is free and unencumbered software, for any purpose, commercial or non-commercial", "Unlicense"),
        ('Ours. Licensed under the Apache License, Version 2.0 (the "License"); you may not use this', "Apache-2.0"),
        (f"The licence. {'By somebody. ' * 50} {MIT}. {'As is. ' * 200} Parts: {APACHE}", "MIT"),
    ],
)
def test_the_permissive_texts_are_told_apart(text: str, licence: str) -> None:
    assert licence_of_text(text) == licence


def test_a_licence_file_is_recognised_by_its_words() -> None:
    assert licence_of_text(MIT.replace(" of ", " of\n")) == "MIT"
    assert licence_of_text("GNU GENERAL PUBLIC LICENSE. Apache License, Version 2.0") == ""


def test_metadata_says_the_licence_by_expression_then_classifiers_then_words() -> None:
    classifier = ["License :: OSI Approved :: MIT License", "Programming Language :: Python"]
    assert licence_of_metadata({"license_expression": "ISC", "classifier": classifier}) == "ISC"
    assert licence_of_metadata({"classifier": classifier, "license": "odd"}) == "MIT"
    assert licence_of_metadata({"license": "BSD"}) == "BSD-3-Clause"
    assert licence_of_metadata({}) == "unknown"


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (document(licence="GPL-3.0-only"), Refusal.LICENCE),
        (document("pkg/tests/helper.py"), Refusal.PATH),
        (document("pkg/test_it.py"), Refusal.PATH),
        (document("pkg/_vendor/bar.py"), Refusal.PATH),
        (document("pkg/thing_pb2.py"), Refusal.PATH),
        (document("pkg/data.pyi"), Refusal.PATH),
        (document(text="x = 1\n"), Refusal.SIZE),
        (document(text="x = 1  # y\n" * 99_000), Refusal.SIZE),
        (document(text="# Generated by a tool\n" + different_source(1)), Refusal.GENERATED),
        (document(text="x = [" + "1234567890, " * 50 + "]\n"), Refusal.TABLE),
        (document(text=different_source(1) + "def broken(:\n"), Refusal.UNPARSABLE),
    ],
)
def test_each_reason_to_leave_a_file_out(given: Document, refusal: Refusal) -> None:
    assert judge(given, Rules()) is refusal


def test_python_is_shortened_where_that_is_wanted_and_else_stays_as_it_is() -> None:
    given = document(text="# Copyright 1999\n" + different_source(1) + "if x:\n\tpass  \n")
    judged = judge(given, Rules(is_shortened=True))
    assert isinstance(judged, Document)
    assert judged.text == different_source(1) + "if x:\n        pass\n"
    assert judge(given, Rules()) == given


@pytest.mark.parametrize("is_shortened", [False, True])
def test_other_languages_are_neither_parsed_nor_changed(is_shortened: bool) -> None:
    given = document("pkg/a.go", "func f() {\n\treturn\n}\n" * 30)
    rules = Rules(suffixes=(".go",), is_shortened=is_shortened)
    assert judge(given, rules) == given
    assert judge(replace(given, text=given.text.replace("\n", "\r\n")), rules) == given, "whoever read it"


def test_a_copy_with_few_changes_is_refused() -> None:
    duplicates = NearDuplicates()
    text = "".join(f"value_{number} = compute_{number}(first_{number}, second)\n" for number in range(200))
    assert duplicates.is_new(text)
    assert not duplicates.is_new(text)
    assert not duplicates.is_new(text.replace("value_3 ", "something_else "))
    assert duplicates.is_new(different_source(3))
    assert not duplicates.is_new("too = few\n")


def test_the_split_is_by_name_and_about_the_share_that_is_meant() -> None:
    names = [f"owner/project-{number}" for number in range(4000)]
    held_out = {name for name in names if side_of(name) is Side.HELD_OUT}
    assert held_out == {name for name in names if side_of(name.upper()) is Side.HELD_OUT}
    assert 40 < len(held_out) < 160
    assert side_of("Owner/Project", 0.0, named=["owner/project"]) is Side.HELD_OUT


def test_parts_are_filled_evenly() -> None:
    parts = [part_of("a", f"{number}/file.py", 4) for number in range(1000)]
    assert all(200 < parts.count(part) < 300 for part in range(4))


def test_folders_wheels_and_archives_are_read(repositories: Path, tmp_path: Path) -> None:
    own = list(read_folder(repositories / "one", (".py",)))
    assert [item.licence for item in own] == ["MIT"] * 8
    assert {item.repository for item in read_repositories(repositories, (".py",))} == {"one", "two", "three"}
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "x = 1\n")
        archive.writestr("thing-1.0.dist-info/METADATA", "Name: thing\nVersion: 1.0\nLicense-Expression: MIT\n")
    assert list(read_archive(wheel)) == [Document("thing", "thing/__init__.py", "MIT", "x = 1\n", "1.0")]
    with pytest.raises(PipelineError, match="not a folder"):
        list(read_folder(tmp_path / "missing", (".py",)))
    (tmp_path / "bad.whl").write_bytes(b"no")
    with pytest.raises(PipelineError, match="not an archive"):
        list(read_archive(tmp_path / "bad.whl"))


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize("inner", ["PKG-INFO", "thing.egg-info/PKG-INFO", "src/thing.egg-info/PKG-INFO"])
def test_a_source_archive_has_its_metadata_at_the_top_or_beside_the_code(
    inner: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"thing-1.0{suffix}"
    write_archive(path, {"thing-1.0/thing.py": "x = 1\n", f"thing-1.0/{inner}": METADATA})
    assert list(read_archive(path)) == [Document("thing", "thing.py", "MIT", "x = 1\n", "1.0")]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PipelineError, match="not an archive"):
        list(read_archive(path))


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
@pytest.mark.parametrize(
    "inner",
    [
        "thing-main/tests/data/foo.egg-info/PKG-INFO",
        "thing-main/pkg/_vendor/x.egg-info/PKG-INFO",
        "thing-main/vendor/x.dist-info/METADATA",
        "tests/foo.egg-info/PKG-INFO",
    ],
)
def test_a_source_archive_without_metadata_takes_no_others(inner: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"thing{suffix}"
    write_archive(path, {"thing-main/thing.py": "x = 1\n", inner: METADATA})
    with pytest.raises(PipelineError, match="no package metadata of its own"):
        list(read_archive(path))


def test_two_packages_at_the_top_of_an_archive_are_told_from_none(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    write_archive(path, {"both/a.egg-info/PKG-INFO": METADATA, "both/b.egg-info/PKG-INFO": METADATA})
    with pytest.raises(PipelineError, match="no package metadata of its own"):
        list(read_archive(path))


@pytest.mark.parametrize("kind", ["encrypted", "unknown method", "broken lzma", "broken xz"])
def test_what_can_not_be_unpacked_names_the_archive(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("thing.tar.xz" if kind == "broken xz" else "thing.zip")
    if path.suffix == ".xz":
        member = tarfile.TarInfo("thing.bin")
        member.size = 200_000
        with tarfile.open(path, "w:xz") as tar:
            tar.addfile(member, io.BytesIO(random.Random(0).randbytes(member.size)))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("thing.py", "x = 1\n" * 100)
    data = bytearray(path.read_bytes())
    if kind == "encrypted":
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    elif kind == "unknown method":
        data[8], data[data.index(b"PK\x01\x02") + 10] = 99, 99
    elif kind == "broken lzma":
        data[42] = 0xFF  # The properties of the stream, after the header and the name.
    else:
        data[100_000:100_100] = bytes(100)
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{path.name} is not an archive that can be read"):
        list(read_archive(path))


def test_a_parquet_file_that_breaks_off_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [different_source(number) for number in range(50)]}), path, compression="gzip")
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)  # In the first pages; what is told about them is at the end.
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"a\.parquet is not a Parquet file that can be read"):
        list(read_parquet(path))


def test_a_wheel_is_not_taken_for_a_package_that_it_vendors(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    own = "Name: thing\nVersion: 1.0\nLicense-Expression: GPL-3.0-only\n\nWhat it does, in many words.\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/__init__.py", "x = 1\n")
        archive.writestr("_vendor/other.dist-info/METADATA", "Name: other\nVersion: 2\nLicense-Expression: MIT\n")
        archive.writestr("thing-1.0.dist-info/METADATA", own)
    assert list(read_archive(wheel)) == [Document("thing", "thing/__init__.py", "GPL-3.0-only", "x = 1\n", "1.0")]


def test_vendored_metadata_alone_is_none(tmp_path: Path) -> None:
    wheel = tmp_path / "thing.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/_vendor/other.dist-info/METADATA", "Name: other\nLicense-Expression: MIT\n")
    with pytest.raises(PipelineError, match="no package metadata"):
        list(read_archive(wheel))


def test_the_folder_that_one_is_in_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_folder_is_ones_own_only_without_a_licence_file(name: str, text: str, licence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert {item.licence for item in read_folder(tmp_path, (".py",))} == {licence}


def test_rows_of_known_data_sets_are_understood(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\n")
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "a.parquet")
    expected = Document("a/b", "c.py", "mit", ROW["content"])
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [expected]
    assert list(read_parquet(tmp_path / "a.parquet")) == [expected]
    assert document_of({"text": "x"}, "here").licence == "unknown"


def test_a_row_without_a_repository_is_one_of_its_own() -> None:
    texts = [different_source(number) for number in range(400)]
    rows = [document_of({"text": text, "path": "setup.py"}, "here") for text in texts]
    assert len({row.repository for row in rows}) == len(rows)
    assert {row.path for row in rows} == {"setup.py"}
    assert rows[0] == document_of({"text": texts[0], "path": "setup.py"}, "elsewhere")
    unnamed = [document_of({"text": text}, "here") for text in texts]
    assert {side_of(row.repository, 20.0) for row in unnamed} == set(Side)


def test_licences_of_a_row_are_all_needed_even_where_one_is_a_choice() -> None:
    row = document_of({"text": "x", "licenses": ["GPL-3.0-only", "MIT OR Apache-2.0"]}, "here")
    assert not is_permissive(row.licence)
    assert document_of({"text": "x", "licenses": ["MIT OR Apache-2.0"]}, "here").licence == "MIT OR Apache-2.0"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines_may_be_gzipped_and_have_blank_ones(name: str, tmp_path: Path) -> None:
    lines = f"{json.dumps(ROW)}\r\n\n   \n{json.dumps(ROW)}\n\n".encode()
    for data in (lines, gzip.compress(lines)):
        (tmp_path / name).write_bytes(data)
        assert [item.path for item in read_jsonl(tmp_path / name)] == ["c.py", "c.py"]


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{\n", "line 1, is not JSON"),
        ("a.jsonl", b'{"body": 1}\n', "line 1, has no column for the text: body"),
        ("a.jsonl", b'{"text": 1}\n', "line 1, has a text that is int"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": "\xff"}\n', "line 3, is not JSON in UTF-8"),
        ("a.jsonl", '{"text": "x"}\n'.encode("utf-16"), "line 1, is not JSON in UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "line 2, is no JSON object but list"),
        ("a.jsonl", b"[" * 100_000, "line 1, is not JSON"),
        ("a.jsonl", gzip.compress(b'{"text": "x"}\n', mtime=0)[:-9], "a.jsonl can't be read after line"),
        ("a.parquet", b"no", "not a Parquet file"),
    ],
)
def test_what_is_no_source_is_a_clear_error(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    read = read_jsonl if name.endswith("jsonl") else read_parquet
    with pytest.raises(PipelineError, match=message):
        list(read(tmp_path / name))
    with pytest.raises(PipelineError, match="not a file"):
        list(read(tmp_path / "missing"))


def test_the_standard_library_and_installed_packages_are_sources() -> None:
    assert next(read_stdlib()).repository == STDLIB
    assert next(read_installed("click")).licence == "BSD-3-Clause"
    assert not set(INSTALLED) & set(FETCHED)
    assert set(HELD_OUT) <= set(FETCHED)


def test_a_package_that_is_missing_is_an_error_unless_it_has_another_name() -> None:
    with pytest.raises(PipelineError, match="no-such-package-here is not installed"):
        list(read_installed("no-such-package-here"))
    with pytest.raises(PipelineError, match="no-such-package-here or nor-this is not installed"):
        list(read_installed("no-such-package-here", "nor-this"))
    assert next(read_installed("no-such-package-here", "click")).repository == "click"


def test_what_should_be_installed_is_asked_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draft_model.corpus.sources.INSTALLED", ("click", "no-such-package-here"))
    monkeypatch.setattr("draft_model.corpus.sources.subprocess.run", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(PipelineError, match="no-such-package-here is not installed"):
        fetch_wheels(tmp_path)


def test_a_package_without_a_list_of_its_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listless-1.0.dist-info").mkdir()
    (tmp_path / "listless-1.0.dist-info" / "METADATA").write_text("Name: listless\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PipelineError, match="listless has no list of its files"):
        list(read_installed("listless"))


def test_the_part_that_is_chosen_is_that_of_either_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draft_model.corpus.sources.read_stdlib", lambda: iter(()))
    monkeypatch.setattr("draft_model.corpus.sources.INSTALLED", ("not-here",))
    monkeypatch.setitem(OTHER_NAMES, "not-here", "click")
    monkeypatch.setattr("draft_model.corpus.sources.ONLY", {"not-here": ("click/co",)})
    paths = {item.path for item in read_embedded_sources(tmp_path)}
    assert "click/core.py" in paths
    assert "click/types.py" not in paths


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_what_is_read_as_installed_is_locked_for_every_engine(engine: str) -> None:
    lists = "".join((LOCKED / f"{name}.txt").read_text() for name in (engine, "torch-cpu"))
    locked = {normal(name) for name in re.findall(r"^([\w.-]+)==", lists, re.MULTILINE)}
    missing = {name for name in INSTALLED if not {normal(name), OTHER_NAMES.get(name)} & locked}
    assert missing == set()


def test_no_repository_is_on_both_sides_and_all_texts_come_back(corpus: Corpus) -> None:
    sides = {side: {item.repository for item in corpus.documents(side)} for side in Side}
    assert sides == {Side.TRAIN: {"one", "two"}, Side.HELD_OUT: {"three"}}
    texts = corpus.texts(Side.TRAIN)
    assert sorted(texts) == sorted(different_source(number) for number in range(24) if number % 3 != 2)
    assert [text for part in corpus.parts(Side.TRAIN) for text in corpus.texts(Side.TRAIN, part)] == texts


def test_the_same_sources_give_the_same_corpus(corpus: Corpus, repositories: Path, tmp_path: Path) -> None:
    settings = CorpusSettings(held_out_percent=0.0, held_out=("three",), num_parts=2)
    assert collect_corpus(read_repositories(repositories, (".py",)), tmp_path / "again", settings) == corpus.manifest
    card = (tmp_path / "again" / "README.md").read_text()
    assert "| three | - | MIT | held-out | 8 |" in card


def test_an_empty_side_is_a_clear_error_and_leaves_nothing(repositories: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="train side of the corpus would be empty: 0 usable files"):
        collect_corpus([document(licence="GPL-3.0-only")], tmp_path / "out", CorpusSettings())
    settings = CorpusSettings(held_out_percent=0.0)
    with pytest.raises(PipelineError, match="--hold-out"):
        collect_corpus(read_repositories(repositories, (".py",)), tmp_path / "out", settings)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PipelineError, match="draft-model corpus"):
        Corpus(tmp_path)
