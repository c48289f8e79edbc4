"""The audit log: its lines, its chain, what breaks it, and what goes on after a crash and a full disk."""

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from completion_server.cli import main
from completion_server.core.errors import ConfigError, UnauthenticatedError
from completion_server.core.events import (
    Actor,
    AdminChanged,
    AuthenticationRefused,
    Event,
    Feedback,
    FeedbackReported,
    LoopLagged,
    SessionClosed,
    SessionOpened,
)
from completion_server.core.outcome import ServedAnswer
from completion_server.records.audit import AuditWriter, RefusalFlood, record_of
from completion_server.records.chain import START, Sealer
from completion_server.records.files import RotatingFile, closed_files
from completion_server.records.writer import Record
from tests.support.disk import files_up_to
from tests.unit.records.events import ended, records_in

NOON_S = 1_800_014_400.0
ADA = Actor("ada", "acme", "key-1", "10.0.0.7", True)
SECRET = b"s" * 32


def writer_of(
    path: Path,
    secret: bytes = b"",
    max_bytes: int = 10**9,
    flood: RefusalFlood | None = None,
    now_s: Sequence[float] = (NOON_S,),
) -> AuditWriter:
    return AuditWriter(RotatingFile(path, max_bytes, 0), Sealer(secret), flood, unix_s=lambda: now_s[0])


def record(event: Event) -> Record:
    found = record_of(event, NOON_S)
    assert found is not None
    return found


def write(path: Path, numbers: range, **options: Any) -> None:
    writer = writer_of(path, **options)
    for number in numbers:
        writer.write([record(ended(number))])
    writer.close_file()


def verify(*paths: Path, secret: Path | None = None) -> tuple[int, str]:
    options = ["--secret-file", str(secret)] if secret else []
    result = CliRunner().invoke(main, ["audit", "verify", *options, *map(str, paths)])
    return result.exit_code, result.output


def test_each_event_has_its_line_without_text(tmp_path: Path) -> None:
    path, writer = tmp_path / "audit.jsonl", writer_of(tmp_path / "audit.jsonl")
    feedback = FeedbackReported(Feedback("accepted", 3), ServedAnswer(0.1, 3), (), ended(1).request.caller)
    events = (
        ended(3), feedback, SessionOpened(ADA), SessionClosed(ADA, 61.23456),
        AdminChanged(ADA, "log level", "info", "debug"),
        AuthenticationRefused(Actor(peer="10.0.0.9"), UnauthenticatedError("token eyJ0 is forged")),
    )  # fmt: skip
    writer.write([record(event) for event in events])
    assert record_of(LoopLagged(1.0), NOON_S) is None
    who = {"user": "ada", "tenant": "acme", "verified": True, "credential": "key-1", "peer": "10.0.0.7"}
    nobody = {"user": "", "tenant": "", "verified": False, "credential": "", "peer": "10.0.0.9"}
    expected = [
        {"kind": "complete", **who, "request": "r3", "outcome": "shed", "bytes": 52, "shed_reason": "rate_limited"},
        {"kind": "feedback", **who, "outcome": "accepted"},
        {"kind": "session_open", **who},
        {"kind": "session_close", **who, "seconds": 61.235},
        {"kind": "admin_change", **who, "setting": "log level", "old": "info", "new": "debug"},
        {"kind": "authentication_refused", **nobody, "outcome": "unauthenticated"},
    ]
    written = records_in(path)
    for number, each in enumerate(written, 1):
        assert each.pop("seq") == number
        assert each.pop("time") == "2027-01-15T12:00:00.000+00:00"
        assert each.pop("prev")
        assert each.pop("hash").startswith("sha256:")
    assert written == expected
    assert "secret" not in path.read_text()
    assert "eyJ0" not in path.read_text()


def test_the_chain_goes_on_over_rotation_and_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for begin in range(0, 30, 10):
        write(path, range(begin, begin + 10), max_bytes=1500)
    closed = [each for _number, each in closed_files(path)]
    assert len(closed) > 3
    packed = closed[1].with_name(f"{closed[1].name}.gz")
    packed.write_bytes(gzip.compress(closed[1].read_bytes()))
    closed[1].unlink()
    everything = [path, *closed[2:], packed, closed[0]]
    status, output = verify(*everything)
    assert (status, output.partition(",")[0]) == (0, "intact: lines 1 to 30"), output
    status, output = verify(*closed[2:], path)
    assert status == 0, "the oldest files may be gone"
    assert re.search(r"^lines 1 to \d+ are not in these files", output, re.MULTILINE), output
    status, output = verify(*(each for each in everything if each != closed[2]))
    assert status == 1
    assert "lines are missing" in output
    last = json.loads(path.read_bytes().splitlines()[-1])
    path.unlink()
    write(path, range(1))
    assert records_in(path)[0]["seq"] < last["seq"], "the newest closed file tells where to go on"
    assert verify(*closed[2:], path)[0] == 0


def change(lines: list[bytes]) -> list[bytes]:
    return [*lines[:4], lines[4].replace(b"acme", b"evil"), *lines[5:]]


def forge(lines: list[bytes]) -> list[bytes]:
    """Replace a line by one with a right hash of its own."""
    body = json.loads(lines[4]) | {"user": "eve"}
    del body["hash"], body["seq"], body["prev"]
    state = Sealer().open(lines[3])[1]
    return [*lines[:4], Sealer().seal(state, body)[0].rstrip(b"\n"), *lines[5:]]


@pytest.mark.parametrize(
    ("tamper", "line", "fault"),
    [
        (change, 5, "was changed"),
        (forge, 6, "does not follow the line before"),
        (lambda lines: lines[:4] + lines[5:], 5, "has the number 6 after 4"),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 5, "has the number 6 after 4"),
        (lambda lines: [*lines[:5], lines[4], *lines[5:]], 6, "has the number 5 after 5"),
        (lambda lines: [*lines[:4], b"{}", *lines[4:]], 5, "is no line of an audit log"),
        (lambda lines: [*lines[:9], lines[9][:-9]], 10, "is no line of an audit log"),
        (lambda lines: [lines[0].replace(START.encode(), b"1" * 64), *lines[1:]], 1, "was changed"),
    ],
)
def test_every_change_is_found(
    tmp_path: Path, tamper: Callable[[list[bytes]], list[bytes]], line: int, fault: str
) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, range(10))
    assert verify(path)[0] == 0
    path.write_bytes(b"\n".join(tamper(path.read_bytes().splitlines())) + b"\n")
    status, output = verify(path)
    assert status == 1
    assert output.startswith(f"broken: {path}:{line}: {fault}"), output


def test_a_sealed_log_needs_its_secret(tmp_path: Path) -> None:
    path, secret, other = tmp_path / "audit.jsonl", tmp_path / "secret", tmp_path / "other"
    secret.write_bytes(SECRET + b"\n")
    other.write_bytes(b"o" * 32)
    write(path, range(5), secret=SECRET)
    assert verify(path, secret=secret)[0] == 0
    assert "was changed" in verify(path, secret=other)[1]
    assert "is sealed with hmac-sha256, not with sha256 (--secret-file)" in verify(path)[1]
    lines = [
        Sealer().seal(Sealer(SECRET).open(line)[1], {"kind": "forged"})[0] for line in path.read_bytes().splitlines()
    ]
    forged = tmp_path / "forged.jsonl"
    forged.write_bytes(b"".join(lines))
    assert verify(forged, secret=secret)[0] == 1
    other.write_bytes(b"short")
    status, output = verify(path, secret=other)
    assert status == 2
    assert "at least 32 bytes" in output
    with pytest.raises(ConfigError, match="is sealed with hmac-sha256"):
        writer_of(path)


def test_a_line_that_a_crash_cut_is_quoted_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    write(path, range(3, 5))
    status, output = verify(path)
    assert status == 0, output
    assert output.splitlines()[0].startswith(f"recovered: {path}:3: ")
    recovered = records_in(path)[2]
    assert recovered["kind"] == "recovered"
    assert recovered["cut"].encode() == whole.splitlines()[2][: -30 + 1]
    assert [each["seq"] for each in records_in(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("content", "num_lines"), [(b"", 1), (b'{"seq":1,"prev', 2)])
def test_the_first_line_may_be_cut(tmp_path: Path, content: bytes, num_lines: int) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(content)
    write(path, range(1))
    assert verify(path)[0] == 0
    assert len(records_in(path)) == num_lines


def test_another_file_and_a_changed_last_line_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text("my notes\nmore notes")
    with pytest.raises(ConfigError, match="has no audit log at its end; move it away"):
        writer_of(path)
    assert path.read_text() == "my notes\nmore notes"
    path.unlink()
    write(path, range(2))
    changed = path.read_bytes().replace(b"r1", b"r9")
    path.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"the last line of .* was changed: its hash is another one; move"):
        writer_of(path)
    assert path.read_bytes() == changed


def test_a_full_disk_breaks_no_chain_and_loses_no_count(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, range(2))
    path.write_bytes(path.read_bytes() + b'{"seq":3')
    writer = writer_of(path)
    with files_up_to(path.stat().st_size + 10):
        writer.write([record(ended(number)) for number in range(2, 7)])
        assert writer.is_failing
        writer.write([record(SessionOpened(ADA))])
    assert writer.num_lost == 6
    writer.write([record(ended(8))])
    assert not writer.is_failing
    kinds = [each["kind"] for each in records_in(path)]
    assert kinds == ["complete", "complete", "recovered", "lost", "complete"]
    assert records_in(path)[3]["counts"] == {"complete": 5, "session_open": 1}
    assert verify(path)[0] == 0


def test_a_line_that_can_not_be_taken_back_is_the_only_one_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    write(path, range(2))
    writer = writer_of(path)

    def fail(*_args: int) -> None:
        raise OSError("the disk has failed")

    with files_up_to(path.stat().st_size + 9), monkeypatch.context() as patched:
        patched.setattr("os.ftruncate", fail)
        writer.write([record(ended(2))])
    writer.write([record(ended(3))])
    *_, cut, lost, last = path.read_bytes().splitlines()
    assert cut == b'{"seq":3,'
    assert [json.loads(each)["kind"] for each in (lost, last)] == ["lost", "complete"]
    assert verify(path) == (1, f"broken: {path}:3: is no line of an audit log\n")


def test_a_flood_of_refused_tokens_is_counted(tmp_path: Path) -> None:
    path, now_s = tmp_path / "audit.jsonl", [NOON_S]
    writer = writer_of(path, flood=RefusalFlood(max_per_s=3), now_s=now_s)

    def refuse(at_s: float, num: int, num_peers: int) -> None:
        now_s[0] = at_s
        for number in range(num):
            actor = Actor(peer=f"10.0.0.{number % num_peers}")
            writer.handle(AuthenticationRefused(actor, UnauthenticatedError("no")), at_s)

    refuse(NOON_S - 9.0, 103, 100)
    refuse(NOON_S - 8.9, 50, 1)
    refuse(NOON_S - 5.0, 2, 1)
    refuse(NOON_S - 4.0, 5, 1)
    now_s[0] += 1
    writer.start()
    writer.close()
    written = records_in(path)
    assert {each["kind"] for each in written} == {"authentication_refused"}
    assert [each.get("count", 1) for each in written] == [1, 1, 1, 150, 1, 1, 1, 1, 1, 2], "also when no more come"
    counted = written[3]
    assert len(counted["peers"]) == 20
    assert sum(counted["peers"].values()) + counted["other_peers"] == 150
    assert verify(path)[0] == 0
