"""The image of models, built by the real buildah, mounted as a node mounts an image volume, and served."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from completion_server.client.operator_commands import status
from completion_server.engine.revisions import folder_revision
from deploy.image.models import main
from tests.support.kustomize import Object, report
from tests.support.models import DRAFT, ROOT, TARGET
from tests.support.server import FREE_PORTS
from tests.support.server_process import flags, serving

pytestmark = [pytest.mark.full, pytest.mark.serial, pytest.mark.timeout(1200)]

START_TIMEOUT_S = 900.0
"""For a real engine on a busy machine."""
MODELS = {"target": TARGET, "draft": DRAFT}


@dataclass
class Storage:
    """A storage of images of its own."""

    folder: Path

    def build(self, target: Path, tag: str = "models") -> str:
        """Build an image as `make model-image` does; return its output."""
        options = (f"MODEL={target}", f"DRAFT={DRAFT}", f"TAG={tag}", f"MODEL_IMAGE=--storage {self.folder}")
        command = ["make", "-o", ".venv/installed", "model-image", *options]
        return subprocess.check_output(command, cwd=ROOT, text=True, timeout=300)

    def buildah(self, *arguments: str) -> str:
        places = (f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}")
        return subprocess.check_output(["buildah", *places, *arguments], text=True, timeout=300).strip()

    def described(self, tag: str = "models") -> Object:
        return dict(json.loads(self.buildah("inspect", "--type=image", tag)))

    def layers(self, tag: str = "models") -> set[str]:
        return set(self.described(tag)["OCIv1"]["rootfs"]["diff_ids"])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    if shutil.which("buildah") is None or os.geteuid():
        report("buildah and root are needed; on Debian: apt-get install buildah")
    made = Storage(tmp_path_factory.mktemp("images"))
    made.build(TARGET)
    yield made
    made.buildah("umount", "--all")
    made.buildah("rm", "--all")
    shutil.rmtree(made.folder)


@pytest.fixture(scope="module")
def root(storage: Storage) -> Path:
    """Yield the mounted files."""
    return Path(storage.buildah("mount", storage.buildah("from", "--pull-never", "models")))


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_image_has_the_files_and_names_their_revisions(storage: Storage, root: Path) -> None:
    assert {path.name for path in root.iterdir()} == MODELS.keys()
    for name, source in MODELS.items():
        assert contents(root / name) == contents(source)
        assert folder_revision(root / name) == folder_revision(source)
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o755
        assert {stat.S_IMODE(path.stat().st_mode) for path in (root / name).iterdir()} == {0o444}
    labels = storage.described()["OCIv1"]["config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == folder_revision(TARGET)
    assert {
        f"completion.{name}.revision": folder_revision(source) for name, source in MODELS.items()
    }.items() <= labels.items()
    assert len(storage.layers()) == sum(len(list(each.iterdir())) for each in MODELS.values()), "a layer for each file"


def test_the_same_files_make_the_same_digest_and_others_share_what_is_the_same(
    storage: Storage, tmp_path: Path
) -> None:
    again = Storage(tmp_path / "other")
    copied = shutil.copytree(TARGET, tmp_path / "copied", copy_function=shutil.copyfile)
    try:
        again.build(copied)
        assert again.described()["FromImageDigest"] == storage.described()["FromImageDigest"]
        (copied / "config.json").write_text((copied / "config.json").read_text() + "\n")
        assert f"target: revision {folder_revision(copied)}" in again.build(copied, tag="changed")
        assert len(again.layers() - again.layers("changed")) == len(again.layers("changed") - again.layers()) == 1
        assert folder_revision(copied) != folder_revision(TARGET)
    finally:
        again.buildah("rmi", "--all", "--force")


async def test_a_real_server_serves_it_and_says_its_revision(root: Path, tmp_path: Path) -> None:
    settings = flags(
        f"engine.model={root / 'target'}", f"engine.revision={folder_revision(TARGET)}",
        f"engine.draft_model={root / 'draft'}", f"engine.draft_revision={folder_revision(DRAFT)}",
        "engine.enforce_eager=true", "engine.warm_up=false", "speculation.mode=fixed", *FREE_PORTS,
    )  # fmt: skip
    async with serving(tmp_path, "--json", *settings, within_s=START_TIMEOUT_S) as server:
        ready = server.ready
        shown = CliRunner().invoke(status, ["--admin", ready["admin_address"], "--json"])
    for said in (ready, json.loads(shown.stdout)):
        assert said["model"] == str(root / "target")
        assert said["model_revision"] == folder_revision(TARGET)
        assert said["draft_model_revision"] == folder_revision(DRAFT)


@pytest.mark.parametrize(
    ("file", "fault"), [("config.json", "holds no config.json"), ("tokenizer.json", "is a link; copy the folder")]
)
def test_a_folder_that_would_make_a_broken_image_is_refused(tmp_path: Path, file: str, fault: str) -> None:
    copied = shutil.copytree(TARGET, tmp_path / "model")
    (copied / file).unlink()
    if "link" in fault:
        (copied / file).symlink_to(TARGET / file)
    refused = CliRunner().invoke(main, ["--target", str(copied)])
    assert refused.exit_code == 2
    assert fault in refused.stderr
