"""deploy/render.sh refuses what still has placeholders, and prints the rest."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests.targets import rendered
from tests.support.kustomize import DEPLOY, require_kustomize

FOLDERS = ("regions/us-east", "global", "loadtest", "monitoring", "gitops/argocd", "gitops/flux")
"""The other regions have the same placeholders (test_regions.py)."""
FILLED = {
    r"CHANGE-ME": ("git", "monitoring"),
    r"example\.com": ("completion.test", "global"),
    r"0{64}": ("5f" * 32, "regions/us-east"),
    r"00000000-0000-0000-0000-000000000000": ("7f1c0d3e-0000-4000-8000-000000000001", "global"),
}
"""Each placeholder: what an operator writes, and a folder that has it."""


def run(deploy: Path, folder: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "KUSTOMIZE": str(require_kustomize())}
    command = ["sh", str(deploy / "render.sh"), str(deploy / folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def filled(folder: Path, without: str = "") -> Path:
    """Return a copy of deploy/ with values in place of the placeholders but one."""
    deploy = shutil.copytree(DEPLOY, folder / "deploy")
    for path in deploy.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        for pattern, (value, _) in FILLED.items():
            text = text if pattern == without else re.sub(pattern, value, text)
        path.write_text(text, encoding="utf-8")
    return deploy


@pytest.mark.parametrize("folder", [*FOLDERS, "nowhere"])
def test_what_is_committed_or_does_not_render_prints_nothing(folder: str) -> None:
    done = run(DEPLOY, folder)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert ("placeholders" in done.stderr) == (folder != "nowhere")


@pytest.mark.parametrize("missing", FILLED)
def test_each_placeholder_is_refused(missing: str, tmp_path: Path) -> None:
    assert run(filled(tmp_path, missing), FILLED[missing][1]).returncode == 1


def test_what_is_filled_in_is_printed(tmp_path: Path) -> None:
    deploy = filled(tmp_path)
    for folder in FOLDERS:
        done = run(deploy, folder)
        assert done.returncode == 0, done.stderr
        assert len(list(yaml.safe_load_all(done.stdout))) == len(rendered(folder))
