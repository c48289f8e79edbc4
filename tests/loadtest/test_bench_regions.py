"""The benchmark of a lost region, in small: real servers behind real distances, the real client, a real kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest.bench.regions.__main__ import main
from tests.support.models import ROOT

SMALL = ("--sessions", "30", "--seconds", "20", "--lost-at", "5", "--away", "5", "--return-spread", "3", "--pace", "4")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sessions", "0"), "--sessions"),
        (("--loss", "flood"), "'flood' is not one of 'kill', 'silence'"),
        (("--seconds", "20"), "away: the region must be back before the end at 20 s, got 30 + 30 s"),
        (("--picture", "/nowhere/x.svg"), "there is no folder /nowhere"),
    ],
)
def test_bad_options_are_refused_before_a_server_starts(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in {1, 2}
    assert said in result.output


@pytest.mark.full
@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["kill", "silence"])
def test_editors_go_elsewhere_and_come_back(tmp_path: Path, how: str) -> None:
    picture, html = tmp_path / "loss.svg", tmp_path / "loss.html"
    command = [sys.executable, "-m", "loadtest.bench.regions", *SMALL, "--loss", how]
    done = subprocess.run(
        [*command, "--picture", str(picture), "--html", str(html)],
        capture_output=True, text=True, check=False, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in {0, 1, 3}, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["editors"] == 30
    assert found["requests"] > 100
    assert found["nearest_share_before"] > 0.5
    assert found["next_users"] > 10
    assert found["next_elsewhere_share"] > 0.9
    assert found["duplicates"] == 0
    assert found["requests_per_s_back"] > 0
    assert len(found["gates"]) == 9
    assert "us-east" in picture.read_text()
    assert "Where editors went" in html.read_text()
