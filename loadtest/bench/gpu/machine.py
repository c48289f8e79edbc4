"""The machine that is measured: its GPU's driver, the file of what was measured, and the plugins of a bare checkout."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import UserDict
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from completion_server import __version__
from completion_server.engine.vllm.process import PLUGIN_GROUP, PLUGINS, check_plugins

FILE = "gpu.json"

_RUNS = "runs"
"""Key of what was measured, by part; the parts' own keys have the figures."""
_CHECKOUT = Path(__file__).parents[3]

Ways = UserDict[str, Any]
"""What was measured of a part, by way."""


def ask_driver(field: str) -> str:
    """Return a field of the first GPU by nvidia-smi, "" without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Results:
    """The figures of all parts, with those of earlier calls, in a file.

    It is written after each way that was measured, so that a call that is cut off keeps what it has.
    """

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

        def write(measured: Ways) -> None:
            runs[part]["ways"] = dict(measured)
            self.found[part] = figures(measured)
            self._write()

        return _WrittenWays(runs[part]["ways"], write)

    def _write(self) -> None:
        """Replace the file whole: a call may be killed at any time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._path)


class _WrittenWays(Ways):
    def __init__(self, earlier: Mapping[str, Any], write: Callable[[Ways], None]) -> None:
        super().__init__()
        self.data.update(earlier)
        self._write = write

    def __setitem__(self, way: str, measured: Any) -> None:  # noqa: ANN401
        super().__setitem__(way, json.loads(json.dumps(measured)))  # as a later call reads it
        self._write(self)


def find_plugins(folder: Path) -> None:
    """Have vLLM find the server's plugins in this process and in those that it starts, also in a bare checkout.

    vLLM loads plugins by the entry points of installed packages, in each of its processes. They look on the path that
    they inherit, so a folder there with the metadata of an installation is enough. `folder` is empty, and stays
    meanwhile.

    Raises:
        ConfigError: vLLM would not find them all the same.

    """
    if not {entry.name for entry in entry_points(group=PLUGIN_GROUP)}.issuperset(PLUGINS):
        _write_metadata(folder)
        sys.path.append(str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))
    check_plugins()


def _write_metadata(folder: Path) -> None:
    """Write the entry points of the checkout's pyproject.toml as an installation has them."""
    project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{__version__}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {__version__}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
