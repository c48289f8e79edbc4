"""The quotas of a file: how it is read, whom it limits, and what happens when it changes."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from completion_server.core.checks import DAY_S
from completion_server.core.errors import ConfigError, Limit, OverloadedError
from completion_server.core.request import Caller
from completion_server.requests.gate import Gate
from completion_server.requests.limits.day_tokens import DayTokens
from completion_server.requests.limits.file_quotas import FileQuotas, open_quotas
from completion_server.requests.limits.quota_table import Quota, parse_quotas
from completion_server.requests.limits.quotas import Quotas
from completion_server.requests.limits.rate_limiter import Excess
from completion_server.requests.limits.settings import AdmissionSettings
from tests.support.cancels import cancel_and_wait
from tests.support.constants import with_constants
from tests.support.server import eventually

SETTINGS = with_constants(AdmissionSettings(user_requests_per_s=1, trust_user_names=True), request_burst_s=3)
TEXT = """
[default]
requests_per_s = 100
weight = 0.5
[default.user]
requests_per_s = 10
tokens_per_day = 1000
[tenant.acme]
weight = 2
tokens_per_day = 5000
[tenant."a/b".user]
sessions = 7
[tenant.acme.user]
tokens_per_s = 50
[user."acme/ada"]
requests_per_s = 0
token_burst = 400
tokens_per_s = 100
"""


def verified(user: str, tenant: str = "acme") -> Caller:
    return Caller(user, "s", tenant, "10.0.0.7:1", "10.0.0.7", True)


def names(quota: Quota) -> set[str]:
    found = (quota.requests and quota.requests.limit, quota.tokens and quota.tokens.limit)
    return {str(limit) for limit in (*found, quota.sessions, quota.tokens_per_day) if limit is not None}


def test_each_key_comes_from_the_nearest_section_and_has_its_name() -> None:
    table = parse_quotas(TEXT)
    acme, ada, bob = table.of_tenant("acme"), table.of_user(verified("ada").owner), table.of_user(verified("bob").owner)
    assert names(acme) == {"quotas.default.requests_per_s = 100", "quotas.tenant.acme.tokens_per_day = 5000"}
    assert names(ada) == {
        "quotas.user.acme/ada.requests_per_s = 0",
        "quotas.user.acme/ada.tokens_per_s = 100",
        "quotas.default.user.tokens_per_day = 1000",
    }
    assert names(bob) == {
        "quotas.default.user.requests_per_s = 10",
        "quotas.tenant.acme.user.tokens_per_s = 50",
        "quotas.default.user.tokens_per_day = 1000",
    }
    assert acme.requests is not None
    assert acme.requests.burst == 200, "two seconds"
    assert ada.tokens is not None
    assert ada.tokens.burst == 400
    assert table.of_user(verified("eve", "a/b").owner).sessions == Limit("quotas.tenant.a/b.user.sessions", 7)
    assert [table.weight_of(key) for key in ("acme", "other", verified("eve", "a/b").tenant_key)] == [2, 0.5, 0.5]


def test_a_name_that_nothing_vouches_for_has_the_defaults() -> None:
    table, claimed = parse_quotas(TEXT), Caller("ada", "s", "acme", "10.0.0.7:1", "10.0.0.7")
    assert names(table.of_user(claimed.owner)) == names(table.default_user)
    assert table.of_tenant(claimed.tenant_key) is table.default_tenant
    assert table.weight_of(claimed.tenant_key) == 0.5


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[default]\nrequests_per_s = \n", "not valid TOML: Invalid value (at line 2, column 18)"),
        ("[tenants.acme]\n", "quotas.tenants: unknown key; did you mean quotas.tenant?"),
        ("[tenant.acme]\nrequets_per_s = 1\n", "quotas.tenant.acme.requets_per_s: unknown key; did you mean"),
        ("[default.user]\nweight = 1\n", "quotas.default.user.weight: unknown key; known here: burst"),
        ("[user.'acme/ada']\nsessions = 1.5\n", "quotas.user.acme/ada.sessions: input should be a valid int"),
        ("[user.'acme/ada']\nsessions = -1\n", "quotas.user.acme/ada.sessions: must be at least 0, got -1"),
        ("[default]\ntokens_per_day = nan\n", "quotas.default.tokens_per_day: must be at least 0, got nan"),
        ("[default]\nburst = true\n", "quotas.default.burst: input should be a valid number, got True"),
        ("[default]\nburst = 3\n", "quotas.default.burst: needs requests_per_s beside it"),
        ("[user.ada]\nsessions = 1\n", 'quotas.user."ada": must be "TENANT/NAME"'),
        ("[default]\nuser = 3\n", "quotas.default.user: must be a section, got 3"),
        ("[tenant.acme]\nweight = 0\n", "quotas.tenant.acme.weight: must be above 0, got 0"),
    ],
)
def test_a_fault_names_its_key(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quotas(text)
    assert fault in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def take(quotas: Quotas, caller: Caller, now: float = 0.0, num_tokens: int = 0) -> Excess | None:
    excess = quotas.excess(caller, now)
    if excess is None:
        quotas.charge_request(caller, now)
        quotas.charge_tokens(caller, num_tokens, now)
    return excess


def test_the_file_takes_the_place_of_the_settings_where_it_has_a_limit() -> None:
    quotas = Quotas(SETTINGS, named=FileQuotas(parse_quotas("[user.'acme/ada']\nrequests_per_s = 2\nburst = 5\n")))
    assert [take(quotas, verified("ada")) for _ in range(5)] == [None] * 5
    assert take(quotas, verified("ada")) == Excess(0.5, Limit("quotas.user.acme/ada.requests_per_s", 2))
    assert [take(quotas, verified("bob")) for _ in range(3)] == [None] * 3
    assert take(quotas, verified("bob")) == Excess(1.0, Limit("admission.user_requests_per_s", 1))


def test_tokens_a_day_are_counted_till_midnight_and_over_changes_of_the_file() -> None:
    unix_s = [DAY_S * 5 + 1000.0]
    text = "[tenant.acme]\ntokens_per_day = {}\n[default.user]\nrequests_per_s = 0\n"
    file = FileQuotas(parse_quotas(text.format(1000)), unix_s=lambda: unix_s[0])
    quotas = Quotas(SETTINGS, named=file)
    reservation = quotas.reserve(verified("ada"), 900, 0.0)
    reservation.settle(700, 0.0)
    assert take(quotas, verified("bob"), num_tokens=300) is None
    excess = Excess(DAY_S - 1000.0, Limit("quotas.tenant.acme.tokens_per_day", 1000))
    assert take(quotas, verified("cyd")) == excess
    assert excess.retry_after_ms == (DAY_S - 1000) * 1000
    assert take(quotas, verified("cyd", "other")) is None
    file.replace(parse_quotas(text.format(1500)))
    assert take(quotas, verified("cyd"), num_tokens=500) is None
    assert take(quotas, verified("cyd")) == Excess(DAY_S - 1000.0, Limit("quotas.tenant.acme.tokens_per_day", 1500))
    unix_s[0] = DAY_S * 6 + 0.5
    assert take(quotas, verified("cyd")) is None


def test_tokens_of_a_day_are_added_up_over_replicas() -> None:
    unix_s = [10.0]
    here, there, sums = DayTokens(lambda: unix_s[0]), DayTokens(lambda: unix_s[0]), dict[str, int]()

    def exchange(replica: DayTokens, *, is_redis_away: bool = False) -> None:
        day, changes = replica.changes()
        for key, num_tokens in changes.items():
            if is_redis_away:
                replica.restore(day, key, num_tokens)
            else:
                sums[key] = sums.get(key, 0) + num_tokens
                replica.learn(day, key, sums[key])

    here.charge("acme", 60)
    there.charge("acme", 50)
    for each in (here, there):
        assert not each.wait_s("acme", 100), "each knows its own"
    exchange(here, is_redis_away=True)
    exchange(here)
    exchange(there)
    assert there.wait_s("acme", 100) == DAY_S - 10
    assert not here.wait_s("acme", 100)
    exchange(here)
    assert here.wait_s("acme", 100), "what was asked for was exchanged"
    there.charge("acme", -30)
    exchange(there)
    exchange(here)
    assert not here.wait_s("acme", 100)
    here.charge("acme", 5)
    unix_s[0] += DAY_S
    exchange(here)
    assert sums == {"acme": 80}, "what was not exchanged by midnight belongs to no day"
    assert len(here) == 0


def test_a_charge_during_an_exchange_is_not_lost_and_the_table_is_bounded() -> None:
    days = DayTokens(lambda: 10.0)
    days.charge("acme", 60)
    day, changes = days.changes()
    days.charge("acme", 30)
    days.learn(day, "acme", changes["acme"] + 10)
    assert days.wait_s("acme", 100)
    assert not days.wait_s("acme", 101)
    for number in range(100_010):
        days.charge(f"user {number}", 1)
    assert len(days) == len(days.changes()[1]) == 100_000


def test_sessions_are_limited_by_the_file_and_stay_counted_when_it_changes() -> None:
    text = "[user.'acme/ada']\nsessions = {}\n"
    file = FileQuotas(parse_quotas(text.format(3)))
    gate, ada, bob = (
        Gate(with_constants(SETTINGS, max_sessions_per_user=2), named=file),
        verified("ada"),
        verified("bob"),
    )
    gate.set_engine_ready(True)
    permits = [gate.enter_session(ada) for _ in range(3)]
    with pytest.raises(OverloadedError, match=r"3 sessions of this user are open.*quotas.user.acme/ada.sessions"):
        gate.enter_session(ada)
    permits += [gate.enter_session(bob) for _ in range(2)]
    with pytest.raises(OverloadedError, match="max_sessions_per_user"):
        gate.enter_session(bob)
    file.replace(parse_quotas(text.format(4)))
    permits.append(gate.enter_session(ada))
    with pytest.raises(OverloadedError) as caught:
        gate.enter_session(ada)
    assert caught.value.limit == Limit("quotas.user.acme/ada.sessions", 4)
    file.replace(parse_quotas(""))
    with pytest.raises(OverloadedError, match="max_sessions_per_user"):
        gate.enter_session(ada)
    for permit in permits:
        permit.close()
    assert gate.num_sessions == 0
    with gate.enter_session(ada), gate.enter_session(ada):
        assert gate.num_sessions == 2


def test_limiters_that_a_new_file_does_not_need_are_forgotten() -> None:
    text = "[user.'acme/ada']\nrequests_per_s = {}\n[default]\ntokens_per_s = 5\n"
    file = FileQuotas(parse_quotas(text.format(1)))
    quotas = Quotas(SETTINGS, file)
    assert take(quotas, verified("ada"), num_tokens=1000) is None
    for rate in range(1, 50):
        file.replace(parse_quotas(text.format(rate)))
        excess = take(quotas, verified("ada"))
        assert excess is not None
        assert excess.limit == Limit("quotas.default.tokens_per_s", 5), "its limiter stays, with what was charged"
    assert len(file._rates) == 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quotas.toml"
    path.write_text("[default]\nsessions = 1\n")
    return path


async def test_a_changed_file_is_reread_and_a_bad_version_is_named_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = open_quotas(str(file))
    quotas = FileQuotas(watched.content)
    task = asyncio.create_task(quotas.follow(watched, poll_s=0.01))

    def replace(text: str) -> None:
        other = file.with_name("other")
        other.write_text(text)
        os.replace(other, file)

    with caplog.at_level(logging.ERROR):
        replace("[default]\nsesions = 2\n")
        await eventually(lambda: bool(caplog.records))
        replace("[default]\nsessions = 3\n")
        await eventually(lambda: quotas.tenant_sessions("acme") == Limit("quotas.default.sessions", 3))
        await asyncio.to_thread(file.unlink)
        await eventually(lambda: len(caplog.records) > 1)
    await cancel_and_wait(task)
    assert quotas.tenant_sessions("acme") == Limit("quotas.default.sessions", 3)
    assert len(caplog.records) == 2
    assert "(quotas.default.sesions: unknown key; did you mean quotas.default.sessions?)" in caplog.messages[0]
    assert "No such file" in caplog.messages[1]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda path: path.write_bytes(b"\xff"), "quotas.toml can't be used: 'utf-8' codec can't decode"),
        (lambda path: path.write_text("[x]"), "quotas.toml can't be used: quotas.x: unknown key"),
        (lambda path: path.unlink(), "no file /"),
    ],
)
def test_a_server_does_not_start_with_a_bad_file(file: Path, spoil: Callable[[Path], object], fault: str) -> None:
    spoil(file)
    with pytest.raises(ConfigError, match=r"admission\.quotas_file: ") as caught:
        open_quotas(str(file))
    assert fault in str(caught.value)
