"""The command: its grid, its tables, its JSON, its refusals."""

import json

from click.testing import CliRunner, Result

from loadtest.__main__ import main


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "--seconds", "1", *arguments])


def test_the_tables_have_every_policy_and_mark_the_best() -> None:
    result = simulate("--load", "0.5,4")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith("load ")]) == 2
    assert len([line for line in lines if line.startswith(("plain", "earliest", "first", "newest"))]) == 2 * (9 + 1)
    assert max(map(len, lines)) <= 150
    overload = result.stdout.split("load ")[2].splitlines()
    marked = [line for line in overload if "*" in line]
    assert any(line.startswith("earliest_deadline") for line in marked)
    assert not any(line.startswith("plain") for line in marked)


def test_the_options_reach_the_simulation() -> None:
    arguments = ("--load", "1", "--order", "first_come", "--shed", "never", "--json", "--no-supersede", "--slots", "4")
    options = ("--sessions", "50", "--engine", "steps", "--hang-up", "--budget-ms", "100", "--hurried-ms", "80")
    first, again, other = (simulate(*arguments, *options, "--seed", seed).stdout for seed in "778")
    assert first == again != other
    found = json.loads(first)
    (run,) = found["runs"]
    assert run["policy"] == {"order": "first_come", "shed": "never", "supersede": False}
    expected = {"num_slots": 4, "num_sessions": 50, "engine": "steps", "budget_s": 0.1, "hurried_s": 0.08}
    assert found["scenario"].items() >= (expected | {"hangs_up": True}).items()


def test_impossible_options_are_refused_with_the_reason() -> None:
    few = simulate("--sessions", "3", "--load", "4")
    assert few.exit_code == 2
    assert "never rests asks 1.66 times a second" in few.stderr
    for loads in ("x", "1,-2", "nan"):
        refused = simulate("--load", loads)
        assert refused.exit_code == 2
        assert "--load" in refused.stderr
