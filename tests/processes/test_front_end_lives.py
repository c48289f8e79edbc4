"""Deaths and reloads of front ends at the same time: in the end as many live as are configured, all of one reload."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from completion_server import __version__
from completion_server.composition import front_ends
from completion_server.composition.front_ends import FrontEndProcess, FrontEnds
from completion_server.config import Config, load_config
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import ConfigError
from tests.support.front_end_process import REFUSED, run
from tests.support.server import eventually
from tests.unit.state.local.front_ends import made_parent

NUMBER = 2
WITHIN_S = 60.0


def config(region: str = "first") -> Config:
    return load_config(None, ("engine.restart_backoff_min_s=0.3", f"server.region={region}"), {})


@pytest.fixture(autouse=True)
def fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "run", run)


@asynccontextmanager
async def running() -> AsyncIterator[FrontEnds]:
    async with made_parent(NUMBER) as parent:
        changes: list[None] = []
        started = FrontEnds(
            config(), NUMBER, MonotonicClock(), parent.group, parent.clear, lambda _page: None,
            lambda: changes.append(None),
        )  # fmt: skip
        await started.start()
        async with asyncio.timeout(WITHIN_S):
            await started.wait_serving()
        assert len(changes) == NUMBER
        yield started
        await started.stop(0.0)


async def settled(found: FrontEnds) -> list[tuple[str, str]]:
    """Wait until as many serve as are configured; return the version and the region of each."""

    def is_settled() -> bool:
        return not found._replacing and sum(each.is_serving for each in found.all) == NUMBER == len(found.all)

    await eventually(is_settled, WITHIN_S)
    return [(each.serving.result().address, each.serving.result().http_address) for each in found.all]


async def killed(process: FrontEndProcess) -> None:
    process.process.kill()
    await asyncio.wait_for(process.ended.wait(), WITHIN_S)


async def test_a_later_one_has_the_settings_and_the_version_of_the_last_reload() -> None:
    async with running() as found:
        assert await settled(found) == NUMBER * [(__version__, "first")]
        assert await found.renew(config("second"), with_code=True) == NUMBER
        await killed(found.all[0])
        assert await settled(found) == NUMBER * [("", "second")]
        assert await found.renew(config("third"), with_code=False) == NUMBER
        assert await settled(found) == NUMBER * [("", "third")]


async def test_one_that_dies_again_and_again_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as found:
        for place in (0, 0, 1):
            await killed(found.all[place])
            await settled(found)
    assert re.findall(r"front end (\d) died.* in ([\d.]+) s", caplog.text) == [("0", "0.3"), ("0", "0.6"), ("1", "0.3")]


async def test_a_reload_that_is_refused_changes_nothing() -> None:
    async with running() as found:
        with pytest.raises(ConfigError, match="refused"):
            await found.renew(config(REFUSED), with_code=True)
        await killed(found.all[1])
        assert await settled(found) == NUMBER * [(__version__, "first")]


@pytest.mark.parametrize("number", range(NUMBER), ids=["the first", "the next"])
async def test_one_that_dies_during_a_reload_is_replaced_once(number: int) -> None:
    async with running() as found:
        old = found.all
        reload = asyncio.create_task(found.renew(config("second"), with_code=False))
        await eventually(lambda: len(found.all) == NUMBER + 1, WITHIN_S)
        await killed(old[number])
        assert await reload == NUMBER
        assert await settled(found) == NUMBER * [(__version__, "second")]


async def test_a_reload_while_one_waits_to_be_replaced_leaves_as_many_as_configured() -> None:
    async with running() as found:
        await killed(found.all[0])
        assert await found.renew(config("second"), with_code=False) == NUMBER - 1
        assert await settled(found) == NUMBER * [(__version__, "second")]
