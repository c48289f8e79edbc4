import pytest

from completion_server.scheduling.queue import ORDERS
from completion_server.scheduling.settings import SchedulingSettings
from tests.unit.scheduling.queue_entries import entry

CLAIMS = (
    entry("old and patient", arrived_at=1.0, ttft_deadline=9.0),
    entry("hurried", arrived_at=2.0, ttft_deadline=2.5),
    entry("new", arrived_at=3.0, ttft_deadline=4.0),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first_come", ["old and patient", "hurried", "new"]),
        ("newest_first", ["new", "hurried", "old and patient"]),
        ("earliest_deadline", ["hurried", "new", "old and patient"]),
    ],
)
def test_each_order_serves_its_first_request(name: str, expected: list[str]) -> None:
    assert [each.id for each in sorted(CLAIMS, key=ORDERS[name])] == expected


def test_every_configurable_order_exists() -> None:
    for name in ORDERS:
        assert SchedulingSettings(order=name).order == name  # type: ignore[arg-type]
    assert SchedulingSettings().order in ORDERS
