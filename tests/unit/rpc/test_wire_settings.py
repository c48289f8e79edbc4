import pytest

from completion_server.rpc.settings import LimitSettings, ServerSettings


def test_a_session_ends_before_its_connection_is_cut() -> None:
    with pytest.raises(
        ValueError, match=r"max_session_age_s: must be less than max_connection_age_grace_s \(10\), got 10"
    ):
        ServerSettings(max_session_age_s=10, max_connection_age_grace_s=10)
    assert ServerSettings().max_session_age_s < ServerSettings().max_connection_age_grace_s


def test_a_message_may_be_as_large_as_all_limits_together() -> None:
    small = LimitSettings(max_prefix_bytes=1, max_suffix_bytes=1, max_snippets=1, max_snippet_bytes=1)
    assert 4096 < small.max_message_bytes < 32 * 1024
    wider = LimitSettings(max_prefix_bytes=1_000_001, max_suffix_bytes=1, max_snippets=1, max_snippet_bytes=1)
    assert wider.max_message_bytes - small.max_message_bytes == 1_000_000
