"""Usage records and the audit log: their fields, their sums, rotation, a full disk and the command that adds up."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from completion_server.cli import main
from completion_server.core.errors import UnauthenticatedError
from completion_server.core.events import (
    AdminChanged,
    AuthenticationRefused,
    Feedback,
    FeedbackReported,
    LoopLagged,
    SessionClosed,
    SessionOpened,
)
from completion_server.core.outcome import ServedAnswer
from completion_server.core.request import Caller
from completion_server.ops.metrics import Metrics
from completion_server.ops.records import record_log
from completion_server.ops.records.audit import MAX_REFUSALS_PER_S, AuditRecords
from completion_server.ops.records.record_log import Put, Record, RecordLog
from completion_server.ops.records.usage import UsageRecords
from tests.support.disk import files_up_to
from tests.support.server import eventually
from tests.unit.ops.records.events import SECRET_TEXT, ended, records_in

NOON_S = 1_800_014_400.0
"""Noon of 2027-01-15, UTC."""
DAY = "2027-01-15"
ADA = ended(1).request.caller


class Lost:
    """Counts dropped records."""

    num = 0

    def __call__(self) -> None:
        self.num += 1


def log_of(path: Path, lost: Lost, max_bytes: int = 10**9, max_files: int = 1000) -> RecordLog:
    log = RecordLog(path, max_bytes, max_files, lost)
    log.start()
    return log


def usage_records(put: Put, key: bytes = b"k" * 32) -> UsageRecords:
    return UsageRecords(put, key, model="m@1", region="us-east")


def users_of(key: bytes, *names: tuple[str, str]) -> list[str]:
    records: list[Record] = []
    usage = usage_records(records.append, key)
    for tenant, user in names:
        usage.handle(ended(1, user, tenant), NOON_S)
    return [record["user"] for record in records]


def test_a_usage_record_has_what_a_bill_needs_and_no_text() -> None:
    records: list[Record] = []
    usage_records(records.append).handle(ended(8), NOON_S)
    (record,) = records
    assert "ada" not in str(record)
    assert SECRET_TEXT not in str(record)
    assert int(record.pop("user"), 16)
    assert record == {
        "kind": "request", "time": f"{DAY}T12:00:00.000+00:00", "tenant": "acme", "verified": True, "model": "m@1",
        "region": "us-east", "request": "r8", "outcome": "length", "shed_reason": "", "cache": "none", "shared": False,
        "prompt_tokens": 43, "cached_tokens": 8, "completion_tokens": 3,
        "queue_ms": 1.0, "tokenise_ms": 2.0, "prefill_ms": 3.25, "decode_ms": 4.0, "total_ms": 10.25,
    }  # fmt: skip


def test_a_pseudonym_belongs_to_a_key_a_tenant_and_a_user() -> None:
    names = (("t", "u"), ("t", "v"), ("", "tu"), ("w", "u"))
    found = users_of(b"1" * 32, *names)
    assert len({*found, *users_of(b"2" * 32, *names)}) == 2 * len(names)
    assert users_of(b"1" * 32, *names) == found
    assert users_of(b"1" * 32, ("t", "")) == [""], "nobody"


def test_the_sums_are_those_of_the_metrics(tmp_path: Path) -> None:
    path, registry, lost = tmp_path / "usage.jsonl", CollectorRegistry(), Lost()
    metrics, log = Metrics(registry), log_of(path, lost, max_bytes=500_000)
    usage = usage_records(log.put_nowait)
    for number in range(6000):
        event = ended(number, user=f"user {number % 17}", tenant=f"tenant {number % 3}")
        metrics.handle(event)
        usage.handle(event, NOON_S + number % 86_400)
    log.close()
    result = run_usage("--json", "--by", "day", *map(str, tmp_path.iterdir()))
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert len(list(tmp_path.iterdir())) > 3

    def count(name: str, **labels: str) -> float:
        samples = (each for family in registry.collect() for each in family.samples if each.name == name)
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    prompt, cached, completion = (sum(row[kind] for row in rows) for kind in ("prompt", "cached", "completion"))
    tokens = [count("completion_tokens_total", kind=kind) for kind in ("prompt", "cached_prompt", "completion")]
    assert [prompt + cached, cached, completion] == tokens
    assert all(tokens)
    assert sum(row["requests"] for row in rows) == count("completion_requests_total") == 6000
    assert lost.num == 0


def test_each_audited_event_has_its_line_without_text() -> None:
    records: list[Record] = []
    audit = AuditRecords(records.append)
    for event in (
        ended(3), FeedbackReported(Feedback("accepted", 3), ServedAnswer(0.1, 3), (), ended(1).request.caller),
        SessionOpened(ADA), SessionClosed(ADA, 61.23456), AdminChanged(ADA, "log level", "info", "debug"),
        AuthenticationRefused(Caller(peer="10.0.0.9"), UnauthenticatedError("token eyJ0 is forged")), LoopLagged(1.0),
    ):  # fmt: skip
        audit.handle(event, NOON_S)
    who = {"user": "ada", "tenant": "acme", "verified": True, "credential": "key-1", "peer": "10.0.0.7"}
    nobody = {"user": "", "tenant": "", "verified": False, "credential": "", "peer": "10.0.0.9"}
    assert {record.pop("time") for record in records} == {f"{DAY}T12:00:00.000+00:00"}
    assert records == [
        {"kind": "complete", **who, "request": "r3", "outcome": "shed", "bytes": 52, "shed_reason": "rate_limited"},
        {"kind": "feedback", **who, "outcome": "accepted"},
        {"kind": "session_open", **who},
        {"kind": "session_close", **who, "seconds": 61.235},
        {"kind": "admin_change", **who, "setting": "log level", "old": "info", "new": "debug"},
        {"kind": "authentication_refused", **nobody, "outcome": "unauthenticated"},
    ]


def test_a_flood_of_refused_tokens_is_counted() -> None:
    records: list[Record] = []
    audit = AuditRecords(records.append)
    refused = AuthenticationRefused(Caller(peer="10.0.0.9"), UnauthenticatedError("no"))
    for at_s, num in ((0.0, 153), (0.9, 50), (3.0, 2), (4.0, MAX_REFUSALS_PER_S + 3)):
        for _ in range(num):
            audit.handle(refused, NOON_S + at_s)
    audit.handle(SessionOpened(ADA), NOON_S + 4.5)
    audit.flush()
    counts = [record.get("count", 1) for record in records if record["kind"] == "authentication_refused"]
    assert counts == [*[1] * MAX_REFUSALS_PER_S, 203 - MAX_REFUSALS_PER_S, 1, 1, *[1] * MAX_REFUSALS_PER_S, 3]
    assert len(records) == len(counts) + 1, "other events have their lines"


def test_files_rotate_by_size_and_only_some_are_kept(tmp_path: Path) -> None:
    path, lost = tmp_path / "audit.jsonl", Lost()
    for begin in (0, 25):
        log = log_of(path, lost, max_bytes=500, max_files=3)
        for number in range(begin, begin + 25):
            log.put_nowait({"number": number, "text": "x" * 80})
        log.close()
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [each.name for each in files] == [*(f"audit.jsonl.{number}" for number in (3, 2, 1)), "audit.jsonl"]
    assert all(0 < each.stat().st_size <= 500 for each in files)
    assert {stat.S_IMODE(each.stat().st_mode) & 0o137 for each in files} == {0}, "others can't read them"
    kept = [record["number"] for each in files for record in records_in(each)]
    assert kept == list(range(50 - len(kept), 50))
    assert lost.num == 0


async def test_a_full_disk_drops_and_counts_whole_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, lost = tmp_path / "audit.jsonl", Lost()
    log = log_of(path, lost)
    with files_up_to(100):
        for number in range(50):
            log.put_nowait({"number": number})
        await eventually(lambda: lost.num >= 40)
    log.put_nowait({"number": 50})
    await eventually(lambda: len(caplog.records) == 2)
    log.close()
    numbers = [record["number"] for record in records_in(path)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 50
    assert len(numbers) + lost.num in {51, 52}, "the first failed record stays in the buffer, and is written later"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert f"{path} can't be written" in caplog.messages[0]


def test_records_that_the_thread_can_t_follow_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_log, "MAX_QUEUED", 5)
    path, lost = tmp_path / "audit.jsonl", Lost()
    log = RecordLog(path, 10**9, 1, lost)
    for number in range(12):
        log.put_nowait({"number": number})
    log.start()
    log.close()
    assert [record["number"] for record in records_in(path)] == [0, 1, 2, 3, 4]
    assert lost.num == 7


def run_usage(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["usage", *arguments])


@pytest.fixture
def usage_file(tmp_path: Path) -> str:
    path = tmp_path / "usage.jsonl"
    log = log_of(path, Lost())
    usage = usage_records(log.put_nowait)
    for tenant, num in (("acme", 3), ("[red]x", 1)):
        for day in range(num):
            event = ended(1, tenant=tenant, is_shared=False, completion_tokens=2, cached_prompt_tokens=10)
            usage.handle(event, NOON_S + 86_400 * day)
    log.close()
    return str(path)


def test_the_command_adds_up_by_tenant_user_and_day(usage_file: str) -> None:
    rows = [json.loads(line) for line in run_usage("--json", usage_file, usage_file).output.splitlines()]
    assert {tuple(row)[:3] for row in rows} == {("tenant", "user", "day")}
    assert [row["requests"] for row in rows] == [2] * 4
    by_tenant = [json.loads(line) for line in run_usage("--json", "--by", "tenant", usage_file).output.splitlines()]
    assert by_tenant == [
        {"tenant": "[red]x", "requests": 1, "prompt": 41, "cached": 10, "completion": 2, "computed": 43},
        {"tenant": "acme", "requests": 3, "prompt": 123, "cached": 30, "completion": 6, "computed": 129},
    ]
    table = run_usage("--by", "tenant", "--by", "day", usage_file).output.splitlines()
    assert table[0].split()[:3] == ["tenant", "day", "requests"]
    assert table[1].split()[:3] == ["[red]x", DAY, "1"]
    assert table[-1].split()[:2] == ["total", "4"]


def test_the_command_names_broken_lines(usage_file: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b'nothing\n{"kind":"other"}\n[]\n\xff\n{"tenant":"a","user":"b","time":1}\n{"kind":"requ')
    result = run_usage("--json", str(path), usage_file)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 4, "the good lines count"
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [f"{path}:{n}" for n in range(1, 7)]
