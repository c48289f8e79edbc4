"""The contract says what the code does, stays compatible, and needs nothing outside of its folder."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import code_pb2, error_details_pb2, status_pb2

from completion.v1 import completion_pb2 as pb
from completion_server.core.errors import CompletionError
from completion_server.core.outcome import ShedReason
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.kustomize import TOOLS, report
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

PROTO = ROOT / "proto"
CONTRACT = (PROTO / "completion" / "v1" / "completion.proto").read_text(encoding="utf-8")
TIMEOUT_S = 120
RETIRED = ("TOO_MANY_REFUSALS",)
"""Reasons of older servers."""


def classes_of(error: type[CompletionError]) -> set[type[CompletionError]]:
    return {error}.union(*(classes_of(each) for each in error.__subclasses__()))


def test_the_reasons_are_those_of_the_code() -> None:
    raised = {each.reason for each in classes_of(CompletionError)} - {""}
    shed = {each.value.upper() for each in ShedReason}
    named = {name.removeprefix("ERROR_REASON_") for name in pb.ErrorReason.DESCRIPTOR.values_by_name}
    assert named - {"UNSPECIFIED", *RETIRED} == raised | shed
    wire_shed = {name.removeprefix("SHED_REASON_") for name in pb.ShedReason.DESCRIPTOR.values_by_name}
    assert wire_shed - {"UNSPECIFIED"} == shed


def buf(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [Path(sys.executable).with_name("buf"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("", "", ""),
        ("  string prefix = 5;", "  string prefix = 5;\n  // New.\n  string added = 4000;", ""),
        ("  string prefix = 5;", "  string before = 5;", 'Field "5"'),
        ("  string prefix = 5;", "  bytes prefix = 5;", "changed type"),
        ("  SHED_REASON_DRAINING = 4;", "  SHED_REASON_STOPPING = 4;", "Enum value"),
        ("  rpc ReportFeedback(ReportFeedbackRequest) returns (ReportFeedbackResponse);", "", "RPC"),
    ],
)
def test_a_breaking_change_is_found_and_an_addition_passes(
    tmp_path: Path, before: str, after: str, finding: str
) -> None:
    folder = tmp_path / "proto"
    shutil.copytree(PROTO, folder)
    changed = folder / "completion" / "v1" / "completion.proto"
    assert before in CONTRACT
    changed.write_text(CONTRACT.replace(before, after, 1) if before else CONTRACT, encoding="utf-8")
    done = buf(folder, "breaking", "--path", "completion", "--against", "baseline.binpb")
    assert bool(done.returncode) == bool(finding), done.stdout + done.stderr
    assert finding in done.stdout


def test_the_folder_needs_nothing_but_protobuf_and_has_googleapis_own_messages(tmp_path: Path) -> None:
    third_party, found = PROTO / "third_party", tmp_path / "found.binpb"
    files = [str(each.relative_to(third_party)) for each in sorted(third_party.rglob("*.proto"))]
    own = ["completion/v1/completion.proto", "completion/v1/admin.proto"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"-I{third_party}"]
    command += [f"--descriptor_set_out={found}", *own, *files]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    vendored = {file.name: file for file in FileDescriptorSet.FromString(found.read_bytes()).file}
    for module in (code_pb2, error_details_pb2, status_pb2):
        installed = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(installed)
        for message in vendored[installed.name].message_type:
            clear_json_names(message)
        assert vendored[installed.name] == installed


def clear_json_names(message: Any) -> None:
    """Drop what protoc adds for other readers."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)


SCRIPT = Path(__file__).with_name("contract_client.mjs")


@pytest_asyncio.fixture
async def modules() -> Path:
    folder = TOOLS / "contract-node" / "node_modules"
    if shutil.which("node") is None:
        report("node not found")
    if not folder.exists():
        report(f"{folder} not found; make deploy-tools installs it")
    return folder


async def test_a_client_in_node_reads_answers_refusals_and_status_details(modules: Path) -> None:
    async with run_server(make_config(), lambda: ScriptedEngine(lambda _request: ("a", " + b", "\n"))) as server:
        process = await asyncio.create_subprocess_exec(
            "node", SCRIPT, server.ready.address, ROOT / "proto", modules, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    found = json.loads(output)
    done, bad, repeated = found["answers"]
    assert done["end"]["finish_reason"] == "FINISH_REASON_STOP"
    assert (bad["sequence"], bad["end"]["finish_reason"]) == ("2", "FINISH_REASON_ERROR")
    assert bad["end"]["error"]["field_violations"][0]["field"] == "max_tokens"
    assert (repeated["sequence"], repeated["event"]) == ("2", "refusal")
    assert repeated["refusal"]["error"]["field_violations"][0]["field"] == "complete.sequence"
    assert found["error"]["code"] == 3
    (bad_request,) = found["error"]["details"]
    violation = {"field": "temperature", "description": "must be from 0 to 2, got -1"}
    assert bad_request == {"BadRequest": {"fieldViolations": [violation]}}
