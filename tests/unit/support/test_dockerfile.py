"""The reader of Dockerfiles refuses what it does not know, and reads the rest as BuildKit does."""

from pathlib import Path, PurePosixPath

import pytest

from tests.support.dockerfile import Dockerfile, DockerfileError, Ignored, key_values

DIGEST = "sha256:" + "0" * 64


def read(tmp_path: Path, text: str, **build_args: str) -> Dockerfile:
    path = tmp_path / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    return Dockerfile.read(path, build_args)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM a\nADD http://x /x\n", "line 2: the instruction ADD"),
        ("FROM a\nRUN <<EOF\ntrue\nEOF\n", "line 2: here-documents"),
        ("FROM ${MISSING}\n", "line 1: no value for MISSING"),
        ("FROM --platform=linux/arm64 a\n", "line 1: FROM"),
        ("ENV A=1\nFROM a\n", "line 1: ENV before FROM"),
    ],
)
def test_what_is_not_known_is_refused(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(DockerfileError, match=named):
        read(tmp_path, text)


def test_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    (copy,) = read(tmp_path, "FROM a\nCOPY --chown=1:1 b /b\n").stages["0"].instructions
    with pytest.raises(DockerfileError, match="--chown"):
        copy.options("from")


def test_global_arguments_choose_the_base_and_a_build_argument_wins(tmp_path: Path) -> None:
    text = f"ARG BASE=debian@{DIGEST}\nARG KIND=x\nFROM ${{BASE}} AS x\nFROM x AS y\nFROM ${{KIND}}\n"
    assert read(tmp_path, text).stages["2"].base == "x"
    assert read(tmp_path, text, KIND="y").stages["2"].base == "y"
    assert read(tmp_path, text).unpinned_images() == []


@pytest.mark.parametrize("line", ["COPY --from=tool:1 /a /a", "FROM tool:1", f"FROM tool:1@{DIGEST[:-1]}"])
def test_an_image_without_a_whole_digest_is_found(line: str, tmp_path: Path) -> None:
    (found,) = read(tmp_path, f"FROM debian@{DIGEST} AS x\n{line}\n").unpinned_images()
    assert found.startswith("tool:1")


def test_lines_that_go_on_and_comments_between_them_are_one_instruction(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "FROM a\nRUN one; \\\n# why\n    two\n").stages["0"].instructions
    assert run.value.split() == ["one;", "two"]


def test_values_are_quoted_and_expanded(tmp_path: Path) -> None:
    (env,) = read(tmp_path, 'FROM a\nENV A="x y" B=${C}/z\n').stages["0"].instructions
    assert key_values(env, {"C": "c"}) == {"A": "x y", "B": "c/z"}
    with pytest.raises(DockerfileError, match="no value for C"):
        key_values(env, {})


@pytest.mark.parametrize(
    ("path", "is_left_out"),
    [
        ("a.txt", True),
        ("src/a.py", False),
        ("src/weights/a", True),
        ("src/deep/x.bin", True),
        ("docs/one.md", False),
        ("docs/two.md", True),
    ],
)
def test_the_last_rule_that_matches_decides(path: str, is_left_out: bool) -> None:
    rules = Ignored(["# comment", "*", "!src", "!docs/one.md", "src/weights", "**/*.bin"])
    assert (PurePosixPath(path) in rules) == is_left_out


def test_a_pattern_that_is_not_known_is_refused() -> None:
    with pytest.raises(DockerfileError, match="known"):
        Ignored(["a/**/b"])
