"""The book as the composition root makes it."""

import pytest

from completion_server.config import load_config
from completion_server.scheduling.book import Book, Shedding
from completion_server.scheduling.queue import earliest_deadline, newest_first
from completion_server.serving.assembly import ServingSettings, make_book


def book_of(*overrides: str) -> Book:
    config = load_config(None, overrides, {})
    settings = ServingSettings(config.admission, config.scheduling, config.shed)
    return make_book(settings)


def test_by_default_the_earliest_deadline_goes_first_and_late_requests_are_shed() -> None:
    book = book_of()
    assert (book.order, book.shedding) == (earliest_deadline, Shedding.LATE)
    assert (book.num_slots, book.max_queued, book.max_retry_after_ms) == (8, 1024, 1000)


def test_every_key_reaches_the_book() -> None:
    book = book_of(
        "scheduling.order=newest_first", "shed.when=predicted", "scheduling.max_queued=7",
        "scheduling.step_tolerance=0", "scheduling.max_slots=5", "admission.retry_after_ms=70",
    )  # fmt: skip
    assert (book.order, book.shedding) == (newest_first, Shedding.PREDICTED)
    assert (book.num_slots, book.max_queued, book.max_retry_after_ms) == (5, 7, 70)


@pytest.mark.parametrize(("max_slots", "expected"), [(1, 1), (2, 2), (32, 8)])
def test_max_slots_below_min_slots_is_the_number_of_slots(max_slots: int, expected: int) -> None:
    assert book_of(f"scheduling.max_slots={max_slots}").num_slots == expected
