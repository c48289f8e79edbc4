"""Usage records: their sums are the metrics', a full disk loses no count, rotation and the command that adds up."""

import gzip
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from completion_server.cli import main
from completion_server.records.files import RotatingFile, closed_files
from completion_server.records.pseudonyms import Pseudonyms
from completion_server.records.reading import lines_of
from completion_server.records.sums import UsageSums
from completion_server.records.usage import UsageWriter
from completion_server.records.writer import Record
from completion_server.telemetry.metrics import Metrics
from tests.support.disk import files_up_to
from tests.unit.records.events import SECRET_TEXT, ended, records_in

NOON_S = 1_800_014_400.0
"""Noon of 2027-01-15, UTC."""
DAY = "2027-01-15"


def writer_of(path: Path, max_bytes: int = 10**9, max_files: int = 0, **options: Any) -> UsageWriter:
    """Return a writer; in its thread everything is written when it is closed."""
    file = RotatingFile(path, max_bytes, max_files)
    return UsageWriter(file, Pseudonyms(b"k" * 32), model="m@1", region="us-east", interval_s=0.001, **options)


def write(path: Path, numbers: range) -> None:
    writer = writer_of(path)
    writer.start()
    for number in numbers:
        writer.handle(ended(number), NOON_S)
    writer.close()


def records_of(writer: UsageWriter, num: int, num_users: int) -> list[Record]:
    return [writer.record_of(ended(number, user=f"u{number % num_users}"), NOON_S) for number in range(num)]


def report_of(*paths: Path) -> UsageSums:
    report = UsageSums()
    for path in paths:
        report.add_lines(lines_of(path))
    return report


def files_of(path: Path) -> list[Path]:
    return [*(each for _number, each in closed_files(path)), path]


def test_a_record_has_what_a_bill_needs_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    write(path, range(8, 9))
    (record,) = records_in(path)
    user = record.pop("user")
    assert len(user) == 16
    assert int(user, 16)
    assert record == {
        "kind": "request", "time": f"{DAY}T12:00:00.000+00:00", "tenant": "acme", "verified": True, "model": "m@1",
        "region": "us-east", "request": "r8", "outcome": "length", "shed_reason": "", "cache": "none", "shared": False,
        "prompt_tokens": 43, "cached_tokens": 8, "completion_tokens": 3,
        "queue_ms": 1.0, "tokenise_ms": 2.0, "prefill_ms": 3.25, "decode_ms": 4.0, "total_ms": 10.25,
    }  # fmt: skip
    assert SECRET_TEXT not in path.read_text()
    assert "ada" not in path.read_text()


def test_pseudonyms_belong_to_a_secret_a_tenant_and_a_user() -> None:
    one, other = Pseudonyms(b"1" * 32), Pseudonyms(b"2" * 32)
    found = {one.of("t", "u"), one.of("t", "v"), one.of("", "tu"), other.of("t", "u"), one.of("w", "u")}
    assert len(found) == 5
    assert one.of("t", "u") == Pseudonyms(b"1" * 32).of("t", "u")
    assert one.of("t", "") == "", "nobody"


@pytest.mark.parametrize("num_requests", [6_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_the_sums_are_those_of_the_metrics(tmp_path: Path, num_requests: int) -> None:
    """The disk is full for a while."""
    path, registry = tmp_path / "usage.jsonl", CollectorRegistry()
    metrics, writer = Metrics(registry), writer_of(path, max_bytes=5_000_000)
    writer.start()

    def hear(numbers: range) -> None:
        for number in numbers:
            event = ended(number, user=f"user {number % 17}", tenant=f"tenant {number % 3}")
            metrics.handle(event)
            writer.handle(event, NOON_S + number % 86_400)

    hear(range(num_requests // 2))
    with files_up_to(1000):
        hear(range(num_requests // 2, num_requests * 3 // 4))
    hear(range(num_requests * 3 // 4, num_requests))
    writer.close()
    report = report_of(*files_of(path))
    assert not report.broken
    total = report.total

    def count(name: str, **labels: str) -> float:
        samples = (each for family in registry.collect() for each in family.samples if each.name == name)
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    tokens = [count("completion_tokens_total", kind=kind) for kind in ("prompt", "cached_prompt", "completion")]
    cached = total["cached_tokens"]
    assert [total["prompt_tokens"] + cached, cached, total["completion_tokens"]] == tokens
    assert all(tokens)
    outcomes = {reason: count("completion_requests_total", outcome=reason) for reason in total["outcomes"]}
    assert total["outcomes"] == outcomes
    assert total["requests"] == num_requests == sum(outcomes.values())


def test_a_full_disk_is_said_once_and_loses_no_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage.jsonl"
    writer = writer_of(path)
    records = records_of(writer, 20, num_users=2)
    writer.write(records[:2])
    with files_up_to(path.stat().st_size + 700):
        for record in records[2:]:
            writer.write([record])
        assert writer.is_failing
        full = path.read_text()
    assert full.endswith("\n")
    num_written = full.count('"kind":"request"')
    assert num_written == 3, "whole lines up to the end of the disk"
    assert writer.num_lost == 20 - num_written
    writer.write([])
    assert not writer.is_failing
    writer.close_file()
    sums = records_in(path)[num_written:]
    assert {(each["kind"], each["day"], each["model"]) for each in sums} == {("sum", DAY, "m@1")}
    assert sum(each["requests"] for each in sums) == 20 - num_written
    assert report_of(path).total["completion_tokens"] == sum(record["completion_tokens"] for record in records)
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING"]
    assert "records.usage_file" in caplog.messages[0]
    assert "File too large" in caplog.messages[0]


def test_sums_that_can_never_be_written_are_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = writer_of(tmp_path / "gone" / "usage.jsonl", max_sums=3)
    for record in records_of(writer, 30, num_users=30):
        writer.write([record])
    writer.close_file()
    assert "usage of 30 requests was not written" in caplog.messages[-1]
    assert writer.num_lost == 30


def test_the_table_of_sums_is_bounded_and_keeps_every_count(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    writer = writer_of(path, max_sums=3, max_queued=0)
    for number in range(30):
        writer.handle(ended(number, user=f"u{number}"), NOON_S)
    writer.write([])
    assert [each["requests"] for each in records_in(path)] == [1, 1, 1, 27]
    assert records_in(path)[3]["user"] == records_in(path)[3]["tenant"] == ""


def test_a_writer_that_can_t_follow_only_counts(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    writer = writer_of(path, max_queued=5)
    for number in range(12):
        writer.handle(ended(number), NOON_S)
    writer.start()
    writer.close()
    assert [each["kind"] for each in records_in(path)] == ["sum", *["request"] * 5]
    assert report_of(path).total["requests"] == 12


def test_a_disk_that_hangs_keeps_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("completion_server.records.writer._CLOSE_S", 0.05)
    monkeypatch.setattr(RotatingFile, "append", lambda _file, _lines: answered.wait(60))
    writer = writer_of(tmp_path / "x", max_queued=2)
    writer.start()
    for number in range(10):
        writer.handle(ended(number), NOON_S)
    writer.close()
    assert "the disk does not answer" in caplog.text
    answered.set()


def test_files_rotate_by_size_and_only_some_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    (tmp_path / "usage.jsonl.000007.gz").touch()
    writer = writer_of(path, max_bytes=2000, max_files=3)
    for record in records_of(writer, 50, num_users=1):
        writer.write([record])
    writer.close_file()
    closed = closed_files(path)
    assert len(closed) == 3
    assert closed[0][0] > 8
    assert [number for number, _path in closed] == list(range(closed[0][0], closed[0][0] + 3))
    assert all(0 < each.stat().st_size <= 2000 for each in files_of(path))
    assert not report_of(*files_of(path)).broken
    before = report_of(path).total["requests"]
    write(path, range(1))
    assert report_of(path).total["requests"] == before + 1, "a restart appends"


def test_a_number_is_not_used_again_when_closed_files_were_taken_away(tmp_path: Path) -> None:
    path, names = tmp_path / "usage.jsonl", list[str]()
    for _ in range(3):
        write(path, range(1))
        RotatingFile(path, 1, 0).append(b"{}\n")
        ((_, closed),) = closed_files(path)
        names.append(closed.name)
        closed.unlink()
    assert names == [f"usage.jsonl.00000{number}" for number in (1, 2, 3)]


def test_a_line_that_a_crash_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_text('{"kind":"requ')
    write(path, range(3))
    report = report_of(path)
    assert report.broken == [f"{path}:1: is no JSON"]
    assert report.total["requests"] == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "usage.jsonl"
    writer = writer_of(path)
    for number, (tenant, user, day) in enumerate(itertools.product(("acme", "[red]x"), "ab", (0, 1))):
        event = ended(7 * number + 1, user, tenant, is_shared=False, completion_tokens=2, cached_prompt_tokens=10)
        writer.write([writer.record_of(event, NOON_S + 86_400 * day)])
    writer.close_file()
    packed = tmp_path / "usage.jsonl.000001.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return tmp_path


def run_usage(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["usage", *arguments])


def test_the_command_adds_up_by_tenant_user_and_day(folder: Path) -> None:
    files = [str(folder / "usage.jsonl"), str(folder / "usage.jsonl.000001.gz")]
    result = run_usage("--json", *files)
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert result.exit_code == 0
    assert len(rows) == 8
    assert {tuple(row)[:3] for row in rows} == {("tenant", "user", "day")}
    assert {row["requests"] for row in rows} == {2}
    by_tenant = [json.loads(line) for line in run_usage("--json", "--by", "tenant", *files).output.splitlines()]
    assert [row["tenant"] for row in by_tenant] == ["[red]x", "acme"]
    assert by_tenant[1]["requests"] == 8
    assert by_tenant[1]["completion"] == 16
    assert by_tenant[1]["computed"] == by_tenant[1]["prompt"] + 16
    assert by_tenant[1]["cached"] == 80
    table = run_usage("--by", "tenant", "--by", "day", *files).output.splitlines()
    assert table[0].split()[:3] == ["tenant", "day", "requests"]
    assert table[1].split()[:3] == ["[red]x", DAY, "4"]
    assert table[-1].split()[:2] == ["total", "16"]


def test_the_command_names_broken_lines(folder: Path) -> None:
    path = folder / "broken.jsonl"
    path.write_text('nothing\n{"kind":"other"}\n[]\n{"kind":"sum","requests":-1,"outcomes":{}}\n{"kind":"request"}\n')
    packed = folder / "cut.gz"
    packed.write_bytes((folder / "usage.jsonl.000001.gz").read_bytes()[:-20])
    result = run_usage("--json", str(path), str(packed), str(folder / "usage.jsonl"))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 8, "the good lines count"
    places = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert places[:5] == [f"{path}:{number}" for number in range(1, 6)]
    assert places[5].startswith(f"{packed}:")
