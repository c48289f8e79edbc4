"""The revision of a model: a digest of a folder's files, or the commit of a hub's model."""

import re
import shutil
from pathlib import Path

import pytest

from completion_server.core.errors import ConfigError
from completion_server.engine.interface import NGRAM, EngineInfo
from completion_server.engine.revisions import folder_revision, resolve_revisions
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from tests.support.clocks import ManualClock
from tests.support.models import DRAFT, TARGET

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(TARGET, tmp_path / "target")


def test_folders_have_digests_of_their_files(folder: Path) -> None:
    found = resolve_revisions(EngineSettings(model=str(folder), draft_model=str(DRAFT)))
    assert found.revision == folder_revision(TARGET)
    assert found.draft_revision == folder_revision(DRAFT)
    assert found.revision is not None
    assert re.fullmatch(r"files-[0-9a-f]{16}", found.revision)
    assert found.revision != found.draft_revision
    assert resolve_revisions(found) == found, "a named revision that is right is served"


@pytest.mark.parametrize("key", ["revision", "draft_revision"])
def test_other_files_than_those_of_a_named_revision_are_refused(folder: Path, key: str) -> None:
    settings = EngineSettings(model=str(folder), draft_model=str(folder))
    named = getattr(resolve_revisions(settings), key)
    pinned = EngineSettings(model=str(folder), draft_model=str(folder), **{key: named})
    assert resolve_revisions(pinned).model == str(folder)
    with (folder / "config.json").open("a") as file:
        file.write("\n")
    fault = rf"engine\.{key}: must be {folder_revision(folder)}, the revision of the files in .*, got {named}"
    with pytest.raises(ConfigError, match=fault):
        resolve_revisions(pinned)


def test_weights_that_are_elsewhere_are_a_part_of_the_revision(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    found = {
        resolve_revisions(EngineSettings(model=str(folder), vllm={"model_weights": f"s3://models/{each}"})).revision
        for each in (1, 2)
    }
    assert found == {folder_revision(folder, f"s3://models/{each}") for each in (1, 2)}
    assert len(found | {folder_revision(folder)}) == 3


def test_a_hubs_model_has_the_commit_that_its_cache_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = folder.parent / "hub"
    snapshot = hub / "models--org--name" / "snapshots" / COMMIT
    shutil.copytree(folder, snapshot)
    (hub / "models--org--name" / "refs").mkdir()
    (hub / "models--org--name" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    for named in (None, "main", COMMIT):
        assert resolve_revisions(EngineSettings(model="org/name", revision=named)).revision == COMMIT
    assert resolve_revisions(EngineSettings(model="org/name", revision="v2")).revision == "v2", "not in the cache"
    assert resolve_revisions(EngineSettings(model="org/other")).revision is None


def test_what_has_no_files_has_no_revision() -> None:
    found = resolve_revisions(EngineSettings(draft_model=NGRAM))
    assert (found.revision, found.draft_revision) == (None, None)
    for draft_model in ("", NGRAM):
        with pytest.raises(ValueError, match="draft_revision: must be unset without a draft model, got v1"):
            EngineSettings(model="a", draft_model=draft_model, draft_revision="v1")


def test_an_engine_names_the_revisions_of_its_settings() -> None:
    def info_of(**settings: str) -> EngineInfo:
        given = EngineSettings(kind="scripted", model="m", revision="1", **settings)
        return SupervisedEngine(lambda: ScriptedEngine.from_settings(given), given, ManualClock()).info

    assert (info_of().revision, info_of().draft_revision) == ("1", "")
    assert info_of(draft_model="d", draft_revision="2").draft_revision == "2"
