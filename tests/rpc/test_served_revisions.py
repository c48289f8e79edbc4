"""A server says which revision of its models it serves, wherever it says which models."""

import json
from pathlib import Path

import grpc

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_server import __version__
from completion_server.app.models import with_revisions
from completion_server.engine.revisions import folder_revision
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.server_commands import ready_json, ready_line
from tests.support.models import DRAFT, TARGET
from tests.support.server import ask, make_config, request, run_server


async def test_the_revisions_are_in_status_ready_lines_metrics_and_records(tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    settings = f"engine.draft_model={DRAFT}", "engine.warm_up=false", f"records.usage_file={usage}"
    config = with_revisions(make_config(*settings))
    target, draft = folder_revision(TARGET), folder_revision(DRAFT)
    async with run_server(config, lambda: ScriptedEngine.from_settings(config.engine)) as server:
        assert (await ask(server.stub, request(max_tokens=4))).text
        async with grpc.aio.insecure_channel(server.ready.admin_address) as channel:
            status = await AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
        labels = {"model": TARGET.name, "model_revision": target, "version": __version__}
        labels |= {"draft_model": DRAFT.name, "draft_model_revision": draft}
        assert server.count("completion_build_info", **labels) == 1
        found = ready_json(server.ready)
        line = ready_line(server.ready, config)
    assert status.model_revision == found["model_revision"] == target
    # The scripted engine has no draft model whose name it could tell.
    assert status.draft_model_revision == found["draft_model_revision"] == (draft if status.draft_model else "")
    assert f"@{target}" in line
    (record,) = map(json.loads, usage.read_text().splitlines())
    assert record["model"] == f"{TARGET.name}@{target}"
