"""What can be said of the image from its recipe alone. test_image_build.py carries it out."""

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from completion_server.config import load_config
from tests.support.dockerfile import Dockerfile, Ignored, Instruction
from tests.support.models import ROOT

FOLDER = ROOT / "deploy" / "image"
RECIPE = FOLDER / "Dockerfile"
IGNORED = Ignored((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
LOCKED = re.compile(r"^[A-Za-z0-9._-]+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+", re.MULTILINE)


def instructions(stage: str, name: str) -> list[Instruction]:
    return [each for each in Dockerfile.read(RECIPE).stages[stage].instructions if each.name == name]


def test_every_image_from_outside_has_a_digest() -> None:
    recipe = Dockerfile.read(RECIPE)
    assert recipe.unpinned_images() == []
    assert len(set(recipe.outside_images())) == 1


def test_an_image_without_a_digest_would_be_found() -> None:
    assert Dockerfile.read(RECIPE, {"DEBIAN": "debian:bookworm-slim"}).unpinned_images() == ["debian:bookworm-slim"]


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_both_variants_are_made_of_stages_that_exist(variant: str) -> None:
    recipe = Dockerfile.read(RECIPE, {"VARIANT": variant})
    assert recipe.stages["server"].base == f"runtime-{variant}"
    assert recipe.stages["compiled"].base == f"environment-{variant}"
    assert list(recipe.stages)[-1] == "server"  # what a build without --target makes


def test_the_linter_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint, "--config", FOLDER / "hadolint.yaml", "--no-color", RECIPE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_user_is_a_number_and_not_root() -> None:
    (user,) = instructions("server", "USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user.value)  # else runAsNonRoot can't be checked by a kubelet
    assert instructions("server", "RUN")[-1].line < user.line


def test_the_ports_are_the_servers_defaults() -> None:
    server = load_config(None, (), {}).server
    defaults = {address.rpartition(":")[2] for address in (server.listen, server.admin_listen)}
    (exposed,) = instructions("server", "EXPOSE")
    assert defaults <= set(exposed.value.split())


@pytest.mark.parametrize(
    "path",
    [
        "target_model/embedded/model.safetensors",
        "target_model/embedded-bf16/config.json",
        "draft_model/embedded/model.safetensors",
        "completion_server/__pycache__/app.cpython-311.pyc",
        ".git/config",
        ".venv/bin/python",
        "work/secret",
        "deploy/local/server.toml",
        "tests/conftest.py",
    ],
)
def test_the_context_leaves_out(path: str) -> None:
    assert PurePosixPath(path) in IGNORED


def test_the_context_has_what_the_recipe_copies() -> None:
    copied = [
        source
        for stage in Dockerfile.read(RECIPE).stages.values()
        for each in stage.instructions
        if each.name == "COPY" and not each.options("from")[0]
        for source in each.value.split()[:-1]
    ]
    assert "completion_server" in copied
    assert all((ROOT / each).exists() and PurePosixPath(each) not in IGNORED for each in copied)


def test_no_file_of_weights_is_tracked_where_the_context_takes_it() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    taken = [each for each in tracked.splitlines() if PurePosixPath(each) not in IGNORED]
    assert taken
    assert [each for each in taken if each.endswith((".safetensors", ".bin", ".pt"))] == []


def test_the_tools_of_the_sbom_are_those_of_the_development_list() -> None:
    development = set(LOCKED.findall((ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")))
    tools = LOCKED.findall((FOLDER / "sbom.txt").read_text(encoding="utf-8"))
    assert any(each.startswith("cyclonedx-bom==") for each in tools)
    names = {each.split("==")[0]: each for each in development}
    differing = [each.split(" ")[0] for each in tools if each.split("==")[0] in names and each not in development]
    assert differing == []
