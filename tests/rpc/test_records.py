"""A server with usage records and an audit log: what editors and operators do is in them, and sums are the metrics'."""

import json
from pathlib import Path
from typing import Any

import grpc

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.server import RunningServer, ask, make_config, next_event, request, run_server

ADA = (("x-user-id", "ada"), ("x-tenant-id", "acme"))
CODE = "canary_in_the_code = "


async def use(server: RunningServer) -> None:
    """Let an editor and an operator do one thing of each kind."""
    answer = await ask(server.stub, request(CODE, max_tokens=4), metadata=ADA)
    assert answer.text
    report = pb.ReportFeedbackRequest(session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
    await server.stub.ReportFeedback(report, timeout=10, metadata=ADA)
    call = server.stub.Session(metadata=ADA)
    await call.write(pb.SessionRequest(complete=request(CODE, max_tokens=4)))
    while (await next_event(call)).WhichOneof("event") != "end":
        pass
    await call.done_writing()
    assert await next_event(call) is grpc.aio.EOF
    async with grpc.aio.insecure_channel(server.ready.admin_address) as channel:
        stub = AdminServiceStub(channel)
        first = await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="error"), timeout=5)
        await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level=first.previous_level), timeout=5)


def records_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_what_editors_and_operators_do_is_recorded(tmp_path: Path) -> None:
    usage, audit = tmp_path / "usage.jsonl", tmp_path / "audit.jsonl"
    config = make_config(
        f"records.usage_file={usage}", f"records.audit_file={audit}", "server.region=us-east", "engine.warm_up=false"
    )
    for _start in range(2):
        async with run_server(config, ScriptedEngine) as server:
            await use(server)
            for kind in ("usage", "audit"):
                assert server.count("completion_records_lost_total", kind=kind) == 0
            tokens = {kind: server.count("completion_tokens_total", kind=kind) for kind in ("prompt", "completion")}
    records = records_in(usage)
    assert len(records) == 4
    assert {(each["tenant"], each["region"], each["outcome"], each["verified"]) for each in records} == {
        ("acme", "us-east", "length", False)
    }
    last = records[2:]
    assert sum(each["prompt_tokens"] + each["cached_tokens"] for each in last) == tokens["prompt"] > 0
    assert sum(each["completion_tokens"] for each in last) == tokens["completion"] > 0
    assert all(each["total_ms"] > 0 for each in records)
    lines = records_in(audit)
    kinds = [each["kind"] for each in lines]
    changes = [each for each in lines if each["kind"] == "admin_change"]
    assert sorted(kinds) == sorted(
        2 * ["complete", "feedback", "session_open", "complete", "session_close", "admin_change", "admin_change"]
    )
    assert (changes[0]["setting"], changes[0]["new"], changes[1]["old"]) == ("log level", "error", "error")
    assert {each["peer"] for each in lines} == {"127.0.0.1"}
    assert {each["user"] for each in lines if each["kind"] != "admin_change"} == {"ada"}
    assert {each["bytes"] for each in lines if each["kind"] == "complete"} == {len(CODE)}
    assert "canary" not in usage.read_text() + audit.read_text()


async def test_a_quota_is_told_by_its_name(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[tenant.acme]\nrequests_per_s = 0.01\nburst = 1\n[tenant.acme.user]\nsessions = 1\n")
    config = make_config(f"admission.quotas_file={quotas}", "admission.trust_user_names=true", "engine.warm_up=false")
    async with run_server(config, ScriptedEngine) as server:
        assert (await ask(server.stub, request(CODE, max_tokens=4), metadata=ADA)).reason == "length"
        answer = await ask(server.stub, request(CODE, max_tokens=4), metadata=ADA)
        assert answer.reason == "shed"
        assert answer.end is not None
        assert answer.end.shed_reason == pb.SHED_REASON_RATE_LIMITED
        assert answer.end.limit.name == "quotas.tenant.acme.requests_per_s"
        assert 90_000 < answer.end.retry_after_ms <= 100_000
        other = (ADA[0], ("x-tenant-id", "other"))
        assert (await ask(server.stub, request(CODE, max_tokens=4), metadata=other)).reason == "length"
