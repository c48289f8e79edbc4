"""A Redis that Sentinels replace while users ask on three real servers."""

import json
from pathlib import Path

import pytest

from tests.support.redis_servers import running_sentinels, wait_until
from tests.support.replicas import asking_users, each_available, running_replicas

NUM_REPLICAS = 3
FAILOVER_S = 30.0


@pytest.mark.full
@pytest.mark.timeout(180)
def test_no_request_fails_while_sentinels_replace_redis(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    with running_sentinels() as sentinels:
        settings = (
            "redis.topology=sentinel", f"redis.addresses={json.dumps(sentinels.addresses)}",
            f"redis.secret_file={secret}", "redis.retry_s=0.1", "cache.enabled=true",
        )  # fmt: skip
        with running_replicas([""] * NUM_REPLICAS, *settings) as replicas:
            wait_until(each_available(replicas, 1.0))
            lost = sentinels.master
            with asking_users(replicas) as asking:
                wait_until(lambda: asking.num_answered > 0)
                lost.kill()
                wait_until(each_available(replicas, 0.0))
                before = asking.num_answered
                wait_until(lambda: asking.num_answered > before)
                wait_until(lambda: sentinels.master is not lost, FAILOVER_S)
                wait_until(each_available(replicas, 1.0), FAILOVER_S)
                before = asking.num_answered
                wait_until(lambda: asking.num_answered > before)
            assert sentinels.master.cli("KEYS", "completion:*") != ""
            assert sum("Redis fails" in line for line in caplog.messages) >= NUM_REPLICAS
