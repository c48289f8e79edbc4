"""The `plan` command: options, tables, JSON, and errors that name the option."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadtest.planning.command import plan
from loadtest.planning.inputs import Inputs
from tests.support.kustomize import DEPLOY


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)  # type: ignore[no-any-return]


def test_seats_servers_and_counts_of_ones_own_can_be_given() -> None:
    """The last is the case of docs/capacity.md with published figures: 12 GPUs and $0.0003."""
    assert found("--seats", "20000")["inputs"]["sessions"] == 12_000
    assert found("--seats", "10", "--open-share", "0.5")["inputs"]["sessions"] == 5
    assert found("--sessions", "12000", "--server-per-s", "11")["needed_gpus"] == 183
    counted = ("--requests-per-session-hour", "38", "--shown-share", "0.83", "--server-per-s", "11")
    one = found("--seats", "20000", *counted)
    assert (one["needed_gpus"], one["usd_per_shown"]) == (12, pytest.approx(0.0003, abs=0.000005))
    assert one["demand"]["requests_per_s"] == pytest.approx(12_000 * 38 / 3600)


def test_tables_state_the_case_and_what_busy_means() -> None:
    output = run("--sessions", "12000", "--gpus-per-region", "4").output
    assert "12 GPUs in 3 region(s): $36.00 an hour, $0.000171 for a completion shown" in output
    assert "Too few GPUs in us-east, us-west, eu-west." in output
    assert re.search(r"us-east +669 +4 +8 +175% +263% ", output)
    assert "Busy above 100%: a region has more sessions than its servers answer in time" in output
    alone = run("--sessions", "1", "--region", "office=1").output
    assert alone.startswith("1 GPU in 1 region(s): $3.00 an hour")
    assert "Busy above" not in alone


def test_every_input_is_stated_to_people_and_programs() -> None:
    arguments = "--sessions", "12000", "--survive", "1"
    output, one = run(*arguments).output, found(*arguments)
    assert (one["gpus"], one["needed_gpus"]) == (33, 33)
    assert all(each["busy_if_lost"] <= 1 for each in one["regions"])
    assert one["cache"]["documents"] == pytest.approx(43.7, abs=0.1)
    known = {name: value for name, value in one["inputs"].items() if isinstance(value, int | float)}
    (line,) = (line for line in output.splitlines() if line.startswith("sessions "))
    stated = {name: float(value) for name, value in (part.split(" ") for part in line.split(", "))}
    assert stated == pytest.approx(known, rel=1e-4)
    assert all(sentence in output for sentence in one["model"])
    assert one["model"][-1] not in run(*arguments, "--server-per-s", "11").output


def test_a_models_config_gives_its_memory_unless_a_number_does() -> None:
    target, draft = DEPLOY / "plan" / "target.json", DEPLOY / "plan" / "draft.json"
    both = "--sessions", "10", "--model", str(target), "--draft-model", str(draft)
    memory = found(*both)["inputs"]
    assert memory["kv_bytes_per_token"] == 819_200 + 2 * 12 * 4 * 128 * 2 == Inputs(10).kv_bytes_per_token
    assert memory["weights_gb"] == pytest.approx(Inputs(10).weights_gb, abs=0.005)
    memory = found(*both, "--kv-dtype", "fp8", "--weights-gb", "9")["inputs"]
    assert (memory["kv_bytes_per_token"], memory["weights_gb"]) == (Inputs(10).kv_bytes_per_token // 2, 9)


def test_a_file_gives_options_and_the_command_line_has_precedence(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "plan" / "target.json", tmp_path / "config.json")
    file = tmp_path / "inputs.toml"
    file.write_text('sessions = 50\nregion = ["office=1"]\nmodel = "config.json"\njson = true\nslots = 7\n')
    one = json.loads(run("--inputs", str(file), "--slots", "9").output)
    assert (one["demand"]["sessions"], one["inputs"]["slots"]) == (50, 9)
    assert [each["name"] for each in one["regions"]] == ["office"]
    assert one["inputs"]["kv_bytes_per_token"] == 819_200


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
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give either --seats or --sessions"),
        ("--seats 5 --sessions 5", "give either --seats or --sessions"),
        ("--sessions 5 --within-ms 50", "--within-ms: must be above network_ms + first_token_ms (55)"),
        ("--sessions 5 --region office", "must be NAME=SHARE, such as us-east=0.4, got office"),
        ("--sessions 5 --region a=0.5", "--region: shares must come to 1, got 0.5"),
        ("--sessions 5 --region a=0.5 --region a=0.5", "region: names must differ"),
        ("--sessions 5 --gpus-per-region 3 --gpus-per-server 2", "must be a multiple of gpus_per_server (2) and at "),
        ("--sessions 5 --survive 3", "--survive: must be from 0 to 2, one less than there are regions"),
        ("--sessions 5 --draft-model .", "--draft-model: needs --model"),
        ("--sessions 5 --model proto", "--model or --draft-model: proto/config.json can't be read: No"),
        ("--sessions 5 --gpu-memory-gb 20", "--gpu-memory-gb: must be at least 21.3 for the weights, a doc"),
    ],
)
def test_bad_options_are_refused_by_name(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output
