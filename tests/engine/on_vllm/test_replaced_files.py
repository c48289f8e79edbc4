"""Files of a model that are replaced under a running server."""

import shutil
from pathlib import Path

import pytest

from completion_server.app.engine_factory import make_engine_factory
from completion_server.app.models import with_revisions
from completion_server.core.errors import ConfigError
from completion_server.engine.revisions import folder_revision
from tests.support.models import TARGET
from tests.support.vllm import vllm_config

pytestmark = pytest.mark.serial


async def test_they_are_refused_when_the_engine_starts_again(tmp_path: Path) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "target")
    config = with_revisions(vllm_config(f"engine.model={folder}"))
    make_engine = make_engine_factory(config)
    with (folder / "tokenizer_config.json").open("a", encoding="utf-8") as file:
        file.write("\n")
    fault = f"must be {folder_revision(folder)}, the revision of the files in {folder}, got {config.engine.revision}"
    with pytest.raises(ConfigError, match=fault):
        await make_engine().start()
