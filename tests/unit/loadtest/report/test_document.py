"""The JSON document: it keeps everything, fits its schema, and an invalid one is refused with the reason."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadtest.report.document import SCHEMA, DocumentError, RunDocument, read_document
from tests.unit.loadtest.run_stats import make_document, make_stats


@pytest.fixture
def document() -> RunDocument:
    stats = make_stats(1, num_slices=3, per_slice=5)
    stats.num_workers = 2
    return make_document(stats, gates=("error_rate<1,usd_per_completion<1",), events=[{"kind": "reconnect", "at_s": 1}])


def test_it_survives_being_written(document: RunDocument, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    document.write(path)
    again = read_document(path)
    assert again.as_json() == document.as_json()
    assert math.isnan(again.targets[0].figures["usd_per_completion"])
    assert again.targets[0].invalid_because == ("of 2 workers, number 1 is missing",)
    assert not again.is_valid
    assert [each.is_met for each in again.targets[0].verdicts] == [True, False]
    assert not again.is_passed
    assert again.events == ((1.0, "reconnect"),)
    assert again.criteria.slo_ttft_ms == 200


def test_it_fits_its_schema(document: RunDocument) -> None:
    schema = json.loads(SCHEMA.read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    checker.validate(document.as_json())
    assert not checker.is_valid(document.as_json() | {"schema_version": 1})
    assert set(schema["required"]) == set(document.as_json())
    assert set(schema["$defs"]["target"]["required"]) == set(document.as_json()["targets"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tool": "wrk"}, "tool is 'wrk', not 'loadtest'"),
        ({"schema_version": 1}, "schema_version is 1; this reads 2"),
        ({"gates": ["speed<1"]}, "there is no figure 'speed'"),
        ({"targets": [{"name": "x"}]}, "it lacks 'figures'"),
        ({"targets": 3}, "it is not a document of a run"),
        ({"scenario": {"criteria": {"within_ms": "soon"}}}, "it is not a document of a run"),
    ],
)
def test_an_invalid_document_is_refused(
    document: RunDocument, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document.as_json() | change))
    with pytest.raises(DocumentError) as raised:
        read_document(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"loadtest"', "{}"])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=r"run\.json: "):
        read_document(path)
    with pytest.raises(DocumentError, match=r"none\.json: "):
        read_document(tmp_path / "none.json")


def test_an_unknown_target_is_refused_with_the_known_names(document: RunDocument) -> None:
    assert document.target("ours") is document.targets[0]
    with pytest.raises(DocumentError, match="there is no target 'theirs', only ours"):
        document.target("theirs")
