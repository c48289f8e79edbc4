"""The `plan` command: reports of the load tester, tables, JSON, the picture, and errors that name the option."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadtest.commands.searches import capacity_json
from loadtest.planning.assumptions import Memory
from loadtest.planning.command import plan
from loadtest.planning.report import LatencyGoal, ReportError, read_measured
from loadtest.report.figures import figures
from loadtest.search import Capacity, Trial
from loadtest.stats import RunStats
from tests.support.kustomize import DEPLOY
from tests.unit.loadtest.run_stats import CRITERIA, make_document, make_stats

GOAL = LatencyGoal(within_ms=200.0, in_time=0.95)
OFFERED_PER_S, SESSIONS = 40, 20


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)  # type: ignore[no-any-return]


def stats(**how: Any) -> RunStats:
    made = make_stats(**{"ttft_ms": 60.0} | how)
    made.num_workers = 1
    return made


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    make_document(stats()).write(path)
    return path


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_run_of_the_load_tester_is_read(report: Path) -> None:
    whole = read_measured(report, GOAL)
    assert whole.requests_per_s == OFFERED_PER_S
    assert whole.shown_share == pytest.approx(0.8, abs=0.05)
    assert whole.requests_per_session_s == OFFERED_PER_S / SESSIONS
    assert read_measured(report, GOAL, servers=4).requests_per_s == OFFERED_PER_S / 4


def test_a_capacity_search_of_the_load_tester_is_read(tmp_path: Path) -> None:
    passed, failed = figures(stats(), CRITERIA), figures(stats(ttft_ms=900), CRITERIA)
    trials = (Trial(20, True, passed), Trial(40, False, failed))
    path = write(tmp_path / "found.json", capacity_json("ours", Capacity(20, 40, False, trials)))
    measured = read_measured(path, GOAL)
    assert measured.requests_per_s == OFFERED_PER_S
    assert "ours in found.json" in measured.source


def test_a_report_sizes_the_fleet(report: Path) -> None:
    one = found("--sessions", "1000", "--region", "office=1", "--report", str(report))
    demand = one["demand"]["requests_per_s"]
    assert one["capacity"]["requests_per_s"] == OFFERED_PER_S
    assert one["needed_gpus"] == -(-demand // OFFERED_PER_S)
    assert one["measured"]["shown_share"] == one["demand"]["shown_share"]
    assert one["regions"][0]["busy_if_lost"] is None
    text = run("--sessions", "1000", "--report", str(report)).output
    assert "A session of the test sent 7,200 requests an hour" in text
    assert run("--sessions", "1", "--region", "office=1").output.startswith("1 GPU, in office: $3.00 an hour")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tool": "wrk"}, "is no document of `loadtest run --out`: tool: input should be 'loadtest'"),
        ({"schema_version": 1}, "is no document of `loadtest run --out`: schema_version: input should be 2"),
        ({"interrupted": True}, "is of a run that was interrupted"),
        ({"targets": []}, "is no document of `loadtest run --out`: targets: "),
        ({"targets": [{"name": "x", "is_valid": True, "figures": {}}]}, "lacks a figure, or has a wrong one: offered_"),
        ({"targets": [{"name": "x", "is_valid": False, "invalid_because": ["it was late"], "figures": {}}]},
         "is of an invalid run: it was late"),
    ],
)  # fmt: skip
def test_a_document_that_does_not_count_is_refused(report: Path, change: dict[str, Any], message: str) -> None:
    write(report, json.loads(report.read_text()) | change)
    result = run("--sessions", "10", "--report", str(report))
    assert result.exit_code == 2
    assert f"--report: {report} {message}" in result.output


@pytest.mark.parametrize("text", ["", "[]", "{", "NaN", '{"trials": 3}'])
def test_other_files_are_refused(report: Path, text: str) -> None:
    report.write_text(text)
    with pytest.raises(ReportError, match=r"JSON|capacity"):
        read_measured(report, GOAL)


def test_a_run_of_too_high_a_load_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    make_document(stats(ttft_ms=300)).write(path)
    with pytest.raises(ReportError, match=r"too high a load: the first text of ours came after \d+ ms .* 200 ms"):
        read_measured(path, GOAL)
    shedding = stats()
    shedding.total.counters["outcome/shed"] = 120  # a tenth
    make_document(shedding).write(path)
    with pytest.raises(ReportError, match=r"too high a load: 10\.0% of the requests of ours were shed.* at most 5\.0%"):
        read_measured(path, GOAL)
    assert read_measured(path, LatencyGoal(200, 0.85)).requests_per_s == OFFERED_PER_S


def test_a_run_that_showed_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    make_document(stats(seen_share=0.0)).write(path)
    with pytest.raises(ReportError, match="nobody saw a completion of ours"):
        read_measured(path, GOAL)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (Capacity(0, 1, False, ()), "not even one session passed"),
        (Capacity(20, 40, True, ()), "load generator was the limit"),
        (Capacity(20, 40, False, (), is_interrupted=True), "was interrupted"),
    ],
)
def test_a_search_without_a_result_is_refused(tmp_path: Path, capacity: Capacity, message: str) -> None:
    path = write(tmp_path / "found.json", capacity_json("ours", capacity))
    with pytest.raises(ReportError, match=message):
        read_measured(path, GOAL)


def test_one_of_several_targets_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    make_document(stats(target="ours"), stats(target="theirs", per_slice=80)).write(path)
    assert read_measured(path, GOAL, target="theirs").requests_per_s == 80
    for target, message in ((None, "choose one with --target: ours, theirs"), ("mine", "has no target 'mine', only")):
        with pytest.raises(ReportError, match=message):
            read_measured(path, GOAL, target=target)


def test_seats_and_servers_can_be_given_in_several_ways() -> None:
    assert found("--seats", "20000")["assumptions"]["users"]["sessions"] == 12_000
    assert found("--seats", "10", "--open-share", "0.5")["assumptions"]["users"]["sessions"] == 5
    assert re.search(r"seats +20,000", run("--seats", "20000").output)
    assert found("--sessions", "12000", "--server-per-s", "11")["needed_gpus"] == 183
    typing = found("--sessions", "1000", "--editors-per-server", "50")  # they type all the time
    assert typing["capacity"]["requests_per_s"] == pytest.approx(50 * 2.5, rel=0.01)


COUNTED = ("--requests-per-session-hour", "38", "--shown-share", "0.83", "--server-per-s", "11")


def test_counts_of_ones_own_replace_the_model_of_typing() -> None:
    """The case of docs/capacity.md with published figures: 12 GPUs and $0.0003."""
    one = found("--seats", "20000", *COUNTED)
    assert one["needed_gpus"] == 12
    assert one["usd_per_shown"] == pytest.approx(0.0003, abs=0.000005)
    assert one["demand"]["requests_per_s"] == pytest.approx(12_000 * 38 / 3600)
    assert one["demand"]["shown_per_session_hour"] == pytest.approx(38 * 0.83)
    assert {each["name"] for each in one["sensitivity"]} == {"gpu_usd_hour", "mean_load"}
    assert "superseded" not in run("--seats", "20000", *COUNTED).output


def test_tables_state_the_case() -> None:
    output = run("--sessions", "12000", "--gpus-per-region", "4", "--target-cost", "0.0003").output
    assert "12 GPUs, 4 in each of 3 regions: $36.00 an hour, $26,280 a month, $0.000171" in output
    assert "us-east needs 8, has 4" in output
    assert re.search(r"completions shown to an open session in a mean hour +10 *\n", output)
    assert re.search(r"--gpu-usd-hour +3 +1\.5 +4\.1 +24 / 24 +0\.000085 / 0\.000234", output)


def test_json_has_what_the_tables_have() -> None:
    one = found("--sessions", "12000", "--survive", "1", "--target-cost", "0.0003")
    assert (one["gpus"], one["needed_gpus"]) == (33, 33)
    assert {each["name"] for each in one["regions"]} == {"us-east", "us-west", "eu-west"}
    assert all(each["holds"] and each["busy_if_lost"] <= 1 for each in one["regions"])
    assert {each["name"] for each in one["target"]["ways"]} >= {"gpu_usd_hour", "mean_load"}
    price = next(each for each in one["sensitivity"] if each["name"] == "gpu_usd_hour")
    assert price["low"]["usd_per_shown"] < one["usd_per_shown"] < price["high"]["usd_per_shown"]
    assert one["prefix_cache"]["documents"] == pytest.approx(43.7, abs=0.1)
    assert one["regions"][0]["cold_start"]["users"] == pytest.approx(91, abs=1)


def test_every_assumption_is_stated_to_people_and_programs() -> None:
    arguments = "--sessions", "12000", "--survive", "1"
    output, one = run(*arguments).output, found(*arguments)
    for section, values in one["assumptions"].items():
        (line,) = (line for line in output.splitlines() if line.startswith(f"{section}: "))
        stated = {
            part.rpartition(" ")[0]: float(part.rpartition(" ")[2]) for part in line.partition(": ")[2].split(", ")
        }
        known = {name: value for name, value in values.items() if value is not None and name != "sessions"}
        assert stated == pytest.approx(known, rel=1e-4)
    assert all(sentence in output for sentence in one["model"])
    assert any("whole document" in sentence for sentence in one["model"])
    measured = run(*arguments, "--server-per-s", "11").output
    assert "memory: " not in measured
    assert "document" not in " ".join(found(*arguments, "--server-per-s", "11")["model"])


def test_a_models_config_gives_its_memory_unless_a_number_does() -> None:
    target, draft = DEPLOY / "plan" / "target.json", DEPLOY / "plan" / "draft.json"
    memory = found("--sessions", "10", "--model", str(target))["assumptions"]["memory"]
    assert memory["kv_bytes_per_token"] == 819_200
    assert memory["weights_gb"] == pytest.approx(13.34, abs=0.01)
    both = "--sessions", "10", "--model", str(target), "--draft-model", str(draft)
    memory = found(*both)["assumptions"]["memory"]
    assert memory["kv_bytes_per_token"] == 819_200 + 2 * 12 * 4 * 128 * 2 == Memory().kv_bytes_per_token
    assert memory["weights_gb"] == pytest.approx(Memory().weights_gb, abs=0.005)
    memory = found(*both, "--kv-dtype", "fp8", "--weights-gb", "9")["assumptions"]["memory"]
    assert (memory["kv_bytes_per_token"], memory["weights_gb"]) == (Memory().kv_bytes_per_token // 2, 9)


def test_a_file_gives_options_and_the_command_line_has_precedence(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "plan" / "target.json", tmp_path / "config.json")
    file = tmp_path / "inputs.toml"
    file.write_text('sessions = 50\nregion = ["office=1"]\nmodel = "config.json"\njson = true\nslots = 7\n')
    one = json.loads(run("--inputs", str(file), "--slots", "9").output)
    assert one["demand"]["sessions"] == 50
    assert [each["name"] for each in one["regions"]] == ["office"]
    assert one["assumptions"]["memory"]["kv_bytes_per_token"] == 819_200
    assert one["assumptions"]["gpu"]["slots"] == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("session = 50", "inputs.toml session: unknown key; did you mean sessions?"),
        ("sessions = ", "inputs.toml can't be read: Invalid value"),
        ("sessions = 0", "'--sessions': 0 is not in the range"),
        ('sessions = 5\nmodel = "none.json"', "none.json' does not exist"),
        ("sessions = 5\nmean_load = 1.5", "--mean-load: must be at most 1, got 1.5"),
    ],
)
def test_a_bad_file_of_options_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text(text)
    result = run("--inputs", str(file))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --seats or --sessions"),
        (("--seats", "5", "--sessions", "5"), "give either --seats or --sessions"),
        (("--sessions", "0"), "'--sessions': 0 is not in the range 1<=x<=10000000"),
        (("--sessions", "5", "--mean-load", "1.5"), "--mean-load: must be at most 1, got 1.5"),
        (("--sessions", "5", "--gpu-usd-hour", "nan"), "--gpu-usd-hour: must be above 0, got nan"),
        (("--sessions", "5", "--within-ms", "50"),
         "--within-ms: must be above network_ms + first_token_ms (55), got 50"),
        (("--sessions", "5", "--away-share", "1"), "--away-share: must be at most 0.999, got 1.0"),
        (("--sessions", "5", "--region", "office"), "must be NAME=SHARE, such as us-east=0.4, got 'office'"),
        (("--sessions", "5", "--region", "a=0.5"), "--region: shares must come to 1, got a=0.5, which come to 0.5"),
        (("--sessions", "5", "--gpus-per-region", "3", "--gpus-per-server", "2"),
         "--gpus-per-region: must be a multiple of gpus_per_server (2) and at least 1, got 3"),
        (("--sessions", "5", "--server-per-s", "5", "--editors-per-server", "5"), "give at most one of --report, "),
        (("--sessions", "5", "--plot", "plan.jpg"), "--plot: must end in .svg, .png, .pdf, got 'plan.jpg'"),
        (("--sessions", "5", "--report", "none.json"), "'none.json' does not exist"),
        (("--sessions", "5", "--survive", "3"), "--survive: must be from 0 to 2, one less than there are regions"),
        (("--sessions", "5", "--draft-model", "."), "--draft-model: needs --model"),
        (("--sessions", "5", "--model", "proto"), "--model: proto/config.json can't be read: No such file"),
        (("--sessions", "5", "--gpu-memory-gb", "20"), "--gpu-memory-gb: must be at least 21.3 for the weights, a doc"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_help_teaches_each_assumption() -> None:
    output = " ".join(run("--help").output.split())
    assert "One server (a measured one needs none of these): --slots" in output
    assert "Price of a GPU for an hour, with its part of the machine. Estimates: 1.5 to 4.1. [default: 3.0]" in output


def test_the_picture_marks_the_plan(tmp_path: Path) -> None:
    first, second = tmp_path / "plan.svg", tmp_path / "again.svg"
    for path in (first, second):
        assert run("--sessions", "12000", "--gpus-per-region", "4", "--plot", str(path)).exit_code == 0
    text = first.read_text()
    assert "12,000 sessions, 12 GPUs," in text
    assert "text too short before the next key" in text
    assert "with a region to spare" in text
    assert text == second.read_text(), "a picture in the repository changes only with its figures"
    one = tmp_path / "one.svg"
    run("--sessions", "30", "--region", "office=1", "--prefetch-share", "0.3", "--plot", str(one))
    assert "with a region to spare" not in one.read_text()
    assert "prefetch: " in one.read_text()
    run("--sessions", "30", *COUNTED, "--plot", str(one))
    assert "not shown: 17%" in one.read_text()


def test_a_picture_that_cannot_be_drawn_or_written_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "loadtest.planning.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--sessions", "5", "--plot", str(tmp_path / "plan.svg"))
    assert result.exit_code == 2
    assert "--plot: needs matplotlib; install completion-server[loadtest]" in " ".join(result.output.split())
    monkeypatch.undo()
    result = run("--sessions", "5", "--plot", str(tmp_path / "none" / "plan.svg"))
    assert result.exit_code == 2
    assert "can't be written: No such file or directory" in " ".join(result.output.split())
