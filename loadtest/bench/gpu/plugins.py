"""The server's plugins of vLLM in a checkout that is not installed."""

import os
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from completion_server import __version__
from completion_server.engine.vllm.process import PLUGIN_GROUP, PLUGINS, check_plugins

_CHECKOUT = Path(__file__).parents[3]


def find_plugins(folder: Path) -> None:
    """Have vLLM find the server's plugins in this process and in those that it starts, also in a bare checkout.

    vLLM loads plugins by the entry points of installed packages, in each of its processes. They look on the path that
    they inherit, so a folder there with the metadata of an installation is enough. `folder` is new, and stays
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
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {__version__}\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
