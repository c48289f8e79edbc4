"""The file gpu.json: written after each way that was measured, so that a call that is cut off keeps what it has."""

import json
from collections import UserDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = "gpu.json"

_RUNS = "runs"
"""Key of what was measured, by part; the parts' own keys have the figures."""

Ways = UserDict[str, Any]
"""What was measured of a part, by way."""


class Results:
    """The figures of all parts, with those of earlier calls."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Read the file of an earlier call; `about` says what this call runs on."""
        self._path = folder / FILE
        earlier = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        self.found: dict[str, Any] = {**earlier, **about}

    def ways(self, part: str, configuration: Mapping[str, Any], figures: Callable[[Ways], dict[str, Any]]) -> Ways:
        """Return what was measured of a part; nothing if it was with another configuration.

        A way that is set there is written to the file at once, with the `figures` of those that are there.
        """
        runs = self.found.setdefault(_RUNS, {})
        configuration = json.loads(json.dumps(configuration))
        if runs.get(part, {}).get("configuration") != configuration:
            runs[part] = {"configuration": configuration, "ways": {}}
            self.found.pop(part, None)
        ways: dict[str, Any] = runs[part]["ways"]

        def write(measured: Ways) -> None:
            ways.update(measured)
            self.found[part] = figures(measured)
            self._write()

        return _WrittenWays(ways, write)

    def _write(self) -> None:
        """Replace the file whole: a call may be killed at any time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._path)


class _WrittenWays(Ways):
    def __init__(self, earlier: Mapping[str, Any], write: Callable[[Ways], None]) -> None:
        self._write: Callable[[Ways], None] | None = None
        super().__init__(earlier)
        self._write = write

    def __setitem__(self, way: str, measured: Any) -> None:  # noqa: ANN401
        super().__setitem__(way, json.loads(json.dumps(measured)))  # as a later call reads it
        if self._write is not None:
            self._write(self)
