"""Recorded arrivals from a CSV."""

from pathlib import Path

import pytest

from loadtest.traffic.recorded import Arrival, RecordedError, read_arrivals

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "2023-11-16 18:17:05.0000000,100,8\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:13.9799600,3,27\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "arrivals.csv"
    path.write_text(text)
    return path


def test_arrivals_count_from_the_first_in_time(tmp_path: Path) -> None:
    found = read_arrivals(write(tmp_path, HEADER + ROWS))
    assert found == [Arrival(0.0, 4808, 10), Arrival(1.02004, 100, 8), Arrival(10.0, 3, 27)]


def test_they_can_be_made_faster_and_fewer(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + ROWS)
    assert [each.at_s for each in read_arrivals(path, scale=2)] == pytest.approx([0.0, 0.51002, 5.0])
    assert [each.context_tokens for each in read_arrivals(path, duration_s=5)] == [4808, 100]
    assert [each.context_tokens for each in read_arrivals(path, rows=1)] == [100]


def test_columns_may_stand_anywhere_and_times_name_a_zone(tmp_path: Path) -> None:
    text = "GeneratedTokens,extra,TIMESTAMP,ContextTokens\n5,x,2024-05-10T00:00:00.009930+00:00,2162\n"
    assert read_arrivals(write(tmp_path, text)) == [Arrival(0.0, 2162, 5)]


@pytest.mark.parametrize(("text", "says"), [
    ("", "line 1: no column TIMESTAMP"),
    ("TIMESTAMP,ContextTokens\n", "line 1: no column GeneratedTokens; expected"),
    (HEADER, "holds no arrivals"),
    (HEADER + ROWS + "noon,1,2\n", "line 5: Invalid isoformat string: 'noon'"),
    (HEADER + "2023-11-16 18:17:03,many,2\n", "line 2: invalid literal for int"),
    (HEADER + "2023-11-16 18:17:03,1\n", "line 2: invalid literal for int"),
    (HEADER + "2023-11-16 18:17:03,1,-2\n", "line 2: lengths must be at least 0, got -2"),
])  # fmt: skip
def test_a_bad_file_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RecordedError, match=says) as caught:
        read_arrivals(write(tmp_path, text))
    assert "arrivals.csv" in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordedError, match="can't be read"):
        read_arrivals(tmp_path / "none.csv")
