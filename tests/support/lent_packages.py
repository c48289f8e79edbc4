"""What this machine lends to the build of an image: Debian's base system, and the package indexes that its pip uses."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.containers import Bind
from tests.support.image_build import LENT

_FOR_BUILDS = {"find-links", "extra-index-url", "index-url", "cert", "default-timeout", "proxy"}
_BASE_S = 900.0
# As in the image debian:bookworm-slim.
_SLIM = "".join(f"path-exclude /usr/share/{each}/*\n" for each in ("doc", "man", "locale", "info"))


def make_debian(image: str, root: Path) -> None:
    """Fill a folder with what `debian:bookworm-...-slim` holds: Debian's minimal system, with its security updates.

    The image of a digest can't be had without a registry, so the versions are those of today's archive.
    """
    assert image.startswith("debian:bookworm-"), image
    assert "-slim@sha256:" in image, image
    mirror = _mirror()
    # It mounts /proc and /sys below the folder; in a namespace of its own they are gone when it ends, however it ends.
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    command = [*own, "debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root), mirror]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BASE_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    sources = [f"deb {mirror} bookworm main", f"deb {mirror} bookworm-updates main"]
    sources.append(f"deb {mirror}-security bookworm-security main")
    (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM, encoding="utf-8")


def _mirror() -> str:
    """Return the archive of Debian that this machine's apt uses; mirrors have the security updates beside it."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return next(uri for uri in found if uri.rstrip("/").endswith("/debian")).rstrip("/")


def lent_by_pip() -> tuple[dict[str, str], list[Bind]]:
    """Return variables that make the build's pip use the indexes of this machine's, and the folders that they name."""
    environment, binds = {"PIP_RETRIES": "1"}, [Bind(Path("/etc/resolv.conf"), "/etc/resolv.conf")]
    for name, value in _settings():
        words = []
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if not path.is_absolute():
                words.append(word)
                continue
            folder = path.parent if word.startswith("file://") else path  # the files of an index lie beside it
            binds.append(Bind(folder, f"{LENT}{folder}"))
            words.append(word.replace(str(path), f"{LENT}{path}"))
        environment[f"PIP_{name.upper().replace('-', '_')}"] = " ".join(words)
    environment |= {name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ}
    return environment, list(dict.fromkeys(binds))


def _settings() -> Iterator[tuple[str, str]]:
    command = [sys.executable, "-m", "pip", "config", "list"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _FOR_BUILDS:
            yield name, " ".join(shlex.split(value))
