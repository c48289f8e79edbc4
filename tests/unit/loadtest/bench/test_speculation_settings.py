"""The extent of the speculation benchmark."""

import pytest
from click.testing import CliRunner

from loadtest.bench.speculation.__main__ import main, tuning_settings


@pytest.mark.parametrize(("k", "ks"), [(None, (1, 4)), ("2,3", (2, 3))])
def test_a_quick_run_has_the_given_ks(k: str | None, ks: tuple[int, ...]) -> None:
    found = tuning_settings(k, 9, 9.0, is_quick=True)
    assert found.ks == ks
    assert max(found.seconds, found.rounds) < 9


def test_a_k_above_the_servers_limit_is_refused() -> None:
    refused = CliRunner().invoke(main, ["--k", "1,16"])
    assert refused.exit_code == 1
    assert "--k: must be at most 8, got 16" in refused.stderr
