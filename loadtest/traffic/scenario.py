"""A scenario: all parameters of a run's traffic and of its criteria, in one TOML file. Knows no target.

`Scenario.load` is the only reader. A scenario is frozen; missing keys have the defaults below. Messages name an invalid
key, the allowed values and the given one, or the nearest known key.
"""

import difflib
import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from loadtest import LoadTestError
from loadtest.traffic.documents import STDLIB
from loadtest.traffic.sections import (
    AbuserSettings,
    AtLeastOne,
    CriteriaSettings,
    DocumentSettings,
    EditorSettings,
    EventSettings,
    Positive,
    RegionShare,
    Settings,
    ShapeSettings,
    SlowReaderSettings,
    TypingSettings,
)

MAX_SLICES = 600
"""Bounds the size of reports and keeps charts readable."""
_MIN_SLICES = 20

_SHARES_SUM_TOLERANCE = 0.01

PACKAGED = Path(__file__).parent / "scenarios"
"""Folder of the packaged scenarios."""


class ScenarioError(LoadTestError):
    """A scenario is not valid; the message names the keys, the allowed values and the given ones."""


def packaged_names() -> list[str]:
    """Return the names of the packaged scenarios."""
    return sorted(path.stem for path in PACKAGED.glob("*.toml"))


def read_tree(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """Return a scenario's name and its parsed file; paths in a file are relative to its folder.

    Raises ScenarioError if there is no such scenario, or the file is not TOML.
    """
    path = PACKAGED / f"{name_or_path}.toml"
    if name_or_path not in packaged_names():
        path = Path(name_or_path)
        if not path.is_file():
            msg = f"scenario {name_or_path!r}: no such file, and no packaged scenario; {_hint(name_or_path)}"
            raise ScenarioError(msg)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: can't be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: not valid TOML: {error}") from error
    documents = tree.get("documents")
    if isinstance(documents, dict) and isinstance(source := documents.get("source"), str) and source != STDLIB:
        documents["source"] = str(path.parent / source)
    return path.stem, tree


def put(tree: dict[str, Any], override: str) -> None:
    """Apply the override `section.key=value`; a value that is not TOML is text. Raises ScenarioError."""
    name, equals, text = override.partition("=")
    *sections, last = name.strip().split(".")
    if not equals or not last:
        raise ScenarioError(f"{override!r}: expected SECTION.KEY=VALUE")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ScenarioError(f"{override!r}: {section} is not a section")
    try:
        tree[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        tree[last] = text


def _lines(error: ValidationError) -> Iterator[str]:
    known = {name for table in Settings.__subclasses__() for name in table.model_fields}
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            last = str(fault["loc"][-1])
            near = difflib.get_close_matches(last, known, n=1)
            yield f"{key}: unknown key" + (f"; did you mean {key.removesuffix(last)}{near[0]}?" if near else "")
        elif fault["type"] == "value_error":  # from a section's own check, which names the key
            yield f"{key}{'.' if key else ''}{fault['ctx']['error']}"
        else:
            yield f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r}"


def _hint(name: str) -> str:
    known = packaged_names()
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"these are packaged: {', '.join(known)}"


class Scenario(Settings):
    """A scenario."""

    name: Annotated[str, Field(min_length=1)]
    description: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    seed: int | str = 0
    duration_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)] = 60.0
    sessions: AtLeastOne = 100
    """Open editors; with a shape, the editors that type at its maximum."""
    slice_s: Positive = 1.0
    """Length of a slice in the report's charts."""
    typing: TypingSettings = TypingSettings()
    documents: DocumentSettings = DocumentSettings()
    editor: EditorSettings = EditorSettings()
    shape: ShapeSettings = ShapeSettings()
    events: tuple[EventSettings, ...] = ()
    regions: Annotated[tuple[RegionShare, ...], Field(min_length=1)] = (RegionShare(name="local", share=1.0),)
    abusers: AbuserSettings = AbuserSettings()
    slow_readers: SlowReaderSettings = SlowReaderSettings()
    criteria: CriteriaSettings = CriteriaSettings()

    @classmethod
    def load(cls, name_or_path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Read a packaged scenario by name or any scenario by path, with `section.key=value` overrides.

        Raises ScenarioError if the scenario is not valid.
        """
        name, tree = read_tree(str(name_or_path))
        for override in overrides:
            put(tree, override)
        scenario = cls.of({"name": name} | tree)
        if (source := scenario.documents.source) != STDLIB and not Path(source).is_dir():
            raise ScenarioError(f"documents.source: must be '{STDLIB}' or a folder, got {source!r}")
        return scenario

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Make a scenario from parsed TOML; its folder is not checked. Raises ScenarioError."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise ScenarioError("\n".join(_lines(error))) from error

    def scaled(
        self, *, sessions: int | None = None, duration_s: float | None = None, seed: int | str | None = None
    ) -> Self:
        """Return a copy with other values. Raises ScenarioError if a value is not valid."""
        changes = {"sessions": sessions, "duration_s": duration_s, "seed": seed}
        return self.of(self.model_dump() | {key: value for key, value in changes.items() if value is not None})

    @property
    def run_slice_s(self) -> float:
        """Length of a slice of the statistics: shorter than `slice_s` in a short run, whose charts need points too."""
        return min(self.slice_s, self.duration_s / _MIN_SLICES)

    @property
    def session_requests_per_s(self) -> float:
        """Long-run typed requests per second of one session, averaged over idle sessions too."""
        return (1 - self.typing.idle_share) * self.typing.model.requests_per_s(self.typing.debounce_ms / 1000)

    def num_sessions(self, requests_per_s: float) -> int:
        """Return the number of sessions whose rate is nearest to `requests_per_s`, at least one."""
        return max(1, round(requests_per_s / self.session_requests_per_s))

    def region_number(self, name: str) -> int:
        """Return the index of a region."""
        return [region.name for region in self.regions].index(name)

    def digest(self) -> str:
        """Return a hash of all parameters."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if faults := [*self._faults()]:
            raise ValueError("\n".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong with two keys together."""
        duration_s, names = self.duration_s, [region.name for region in self.regions]
        if duration_s / self.slice_s > MAX_SLICES:
            yield (
                f"slice_s: a run of {duration_s:g} s has at most {MAX_SLICES} slices, "
                f"so it must be at least {duration_s / MAX_SLICES:g}, got {self.slice_s:g}"
            )
        late = {"shape": self.shape.at_s} if self.shape.kind in {"ramp", "spike"} else {}
        late |= {f"events.{place}": event.at_s for place, event in enumerate(self.events)}
        for name, at_s in late.items():
            if at_s >= duration_s:
                yield f"{name}.at_s: must be before the end at {duration_s:g} s, got {at_s:g}"
        shares = sum(region.share for region in self.regions)
        if abs(shares - 1) > _SHARES_SUM_TOLERANCE:
            yield f"regions: their shares must come to 1, got {shares:g}"
        yield from (f"regions: {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1)
        for place, event in enumerate(self.events):
            if event.region and event.region not in names:
                yield f"events.{place}.region: must be one of {', '.join(names)}, got {event.region!r}"


def packaged_scenarios() -> list[Scenario]:
    """Return the packaged scenarios."""
    return [Scenario.of({"name": name} | read_tree(name)[1]) for name in packaged_names()]
