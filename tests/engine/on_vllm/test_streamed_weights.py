"""Weights that vLLM streams, by a server as an operator runs it: from a folder, and from an S3 server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.revisions import folder_revision
from tests.support.models import DRAFT, TARGET
from tests.support.object_storage import ObjectStorage, object_storage
from tests.support.server import FREE_PORTS, UNCOMPILED, UNHURRIED, request
from tests.support.server_process import flags, serving

pytestmark = [pytest.mark.serial, pytest.mark.full]

START_S = 600.0
"""On machines that are busy with other things."""
STREAMED = "engine.vllm.load_format=runai_streamer"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


async def completed(folder: Path, *settings: str) -> tuple[str, str]:
    """Start a server; return the revision of its model, and what it completes."""
    arguments = ("--json", *flags(*FREE_PORTS, *UNHURRIED, UNCOMPILED, f"engine.draft_model={DRAFT}", *settings))
    async with (
        serving(folder, *arguments, within_s=START_S) as server,
        grpc.aio.insecure_channel(server.ready["address"]) as channel,
    ):
        call = CompletionServiceStub(channel).Complete(request("def add(a, b):\n    return ", timeout_ms=60_000))
        text = "".join([answer.delta.text async for answer in call])
        return server.ready["model_revision"], text


async def test_streamed_weights_are_the_models(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)
    expected = await completed(tmp_path, f"engine.model={TARGET}")
    assert expected[1]
    assert await completed(tmp_path, f"engine.model={TARGET}", STREAMED) == expected
    small = shutil.copytree(TARGET, tmp_path / "target", ignore=shutil.ignore_patterns(WEIGHTS))
    weights = storage.put(TARGET / WEIGHTS, f"target/revision-1/{WEIGHTS}")
    settings = (f"engine.model={small}", STREAMED, f"engine.vllm.model_weights={weights}")
    assert await completed(tmp_path, *settings) == (folder_revision(small, weights), expected[1])
