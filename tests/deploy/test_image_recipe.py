"""What can be said of the image from its recipe alone. test_image_build.py carries it out, `make check` lints it."""

import re
import subprocess

import pytest
from dockerfile_parse import DockerfileParser

from tests.support.models import ROOT

FOLDER = ROOT / "deploy" / "image"
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)


def recipe(**build_args: str) -> DockerfileParser:
    return DockerfileParser(str(FOLDER / "Dockerfile"), build_args=build_args)


def values(instruction: str) -> list[str]:
    """Return the values of an instruction in all stages, in their order."""
    return [each["value"] for each in recipe().structure if each["instruction"] == instruction]


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_each_variant_is_made_of_its_own_stages_and_one_image_with_a_digest(variant: str) -> None:
    parents = recipe(VARIANT=variant).parent_images
    stages = re.findall(r"FROM \S+ AS (\S+)", recipe().content)
    made = dict(zip(stages, parents, strict=True))
    assert (made["server"], made["compiled"]) == (f"runtime-{variant}", f"environment-{variant}")
    assert stages[-1] == "server"  # what a build without --target makes
    (image,) = set(parents) - set(stages)
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", image)
    assert set(re.findall(r"\bfrom=([^\s,]+)", recipe().content)) <= set(stages)


def test_the_context_is_what_the_recipe_copies_without_weights() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    taken = {each.removeprefix("!") for each in rules if each.startswith("!")}
    copied = {source for each in values("COPY") if "--from" not in each for source in each.split()[:-1]}
    assert {each if each in taken else each.partition("/")[0] for each in copied} == taken
    assert all((ROOT / each).exists() for each in copied)
    tracked = subprocess.check_output(["git", "ls-files", *taken], cwd=ROOT, text=True).splitlines()
    everything, *left_out = (each for each in rules if each and each[0] not in "!#")
    assert everything == "*"
    weights = [each for each in tracked if each.endswith((".safetensors", ".bin", ".pt"))]
    assert weights
    assert all(each.startswith(tuple(left_out)) for each in weights)
    assert {"**/*.safetensors", "**/__pycache__"} <= set(left_out)


def test_the_tools_of_the_sbom_are_those_of_the_development_list() -> None:
    development, tools = (
        dict(LOCKED.findall(path.read_text(encoding="utf-8")))
        for path in (ROOT / "requirements" / "dev.txt", FOLDER / "sbom.txt")
    )
    assert "cyclonedx-bom" in tools
    assert {name: each for name, each in tools.items() if development.get(name, each) != each} == {}
