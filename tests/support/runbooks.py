"""The entries of docs/runbooks.md."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.models import ROOT

_STUBS = """
kubectl() { printf "kubectl %s\\n" "$*"; }
promtool() { :; }
cmctl() { :; }
openssl() { cat; }
base64() { cat; }
"""


@dataclass(frozen=True)
class Entry:
    """What the runbooks say of an alert."""

    text: str

    @property
    def commands(self) -> list[str]:
        """What to type first, a command a line."""
        found = re.search(r"^```sh\n(.*?)\n```$", self.text, re.MULTILINE | re.DOTALL)
        return found[1].split("\n") if found else []


def runbooks() -> dict[str, Entry]:
    """Return the entries by their alerts."""
    _, *parts = _parts()
    return {alert: Entry(entry) for alert, entry in zip(parts[::2], parts[1::2], strict=True)}


def asked() -> list[str]:
    """Return the queries that the entries have somebody type."""
    text = "\n".join(entry.text for entry in runbooks().values())
    return re.findall(r"^ask '(.+)'$", text, flags=re.MULTILINE)


def typed(commands: Sequence[str]) -> list[str]:
    """Run commands in a shell with the functions at the head of the page; return the calls of kubectl in them."""
    functions = re.findall(r"^\w+\(\) \{.+?; \}$", _parts()[0], re.MULTILINE | re.DOTALL)
    script = "\n".join(("set -e -o pipefail", _STUBS, *functions, *commands))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.splitlines()


def _parts() -> list[str]:
    text = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
    return re.split(r"^## (Completion\w+)$", text, flags=re.MULTILINE)
