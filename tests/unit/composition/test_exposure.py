"""Warnings of what other machines can read."""

import pytest

from completion_server.composition.exposure import warn_of_exposure
from completion_server.config import load_config

REMOTE = ('redis.addresses=["redis.example:6379"]',)
SENTINELS = ('redis.addresses=["127.0.0.1:26379"]', "redis.topology=sentinel")


@pytest.mark.parametrize(
    ("overrides", "warns"),
    [
        ((), False),
        (('redis.addresses=["127.0.0.1:6379"]',), False),
        (REMOTE, True),
        (SENTINELS, True),
        ((*REMOTE, "redis.tls.enabled=true"), False),
    ],
)
def test_a_redis_elsewhere_without_tls_is_warned_of(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, overrides: tuple[str, ...], warns: bool
) -> None:
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(b"s" * 32)
    config = load_config(None, [*overrides, f"redis.secret_file={secret}"], {})
    warn_of_exposure(config, "127.0.0.1:50051")
    assert ("redis.tls: off" in caplog.text) == warns
