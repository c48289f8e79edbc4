"""Builds an image from its Dockerfile with buildah, without a daemon or a registry, and starts processes in it.

Needs root on Linux, buildah and debootstrap. The image of a digest can't be had without a registry, so the base is
Debian's minimal system of today's archive, with its security updates.
"""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.kustomize import report, require_programs
from tests.support.models import ROOT

PROGRAMS = ("buildah", "debootstrap", "unshare", "setpriv")
_BASE = "localhost/debian:slim"
_TIMEOUT_S = 3000.0
_OWN_NAMESPACES = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private")
_PIP_HOME = "/root/.config/pip"
_PIP_SETTINGS = {"find-links", "extra-index-url", "index-url", "default-timeout", "proxy"}
# As in the image debian:bookworm-slim.
_SLIM = "".join(f"path-exclude /usr/share/{each}/*\n" for each in ("doc", "man", "locale", "info"))
# Whatever it mounts is gone with its namespace.
_ENTER = """
root=$1; shift
mount --bind "$root" "$root"; cd "$root"
mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm; mount -t tmpfs -o mode=1777 tmpfs tmp
for each in $READ_ONLY; do mount --bind "${each%%:*}" ".${each#*:}"; mount -o remount,bind,ro ".${each#*:}"; done
for each in $WRITABLE; do mount --bind "${each%%:*}" ".${each#*:}"; done
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


@cache
def _why_not() -> str:
    if os.geteuid():
        return "the build of an image needs root"
    trial = [*_OWN_NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"this machine gives no namespaces: {done.stderr.strip()}" if done.returncode else ""


def require_builder() -> None:
    """Skip the test on a machine where no image can be built, and fail it if CI is set."""
    require_programs(PROGRAMS, "buildah debootstrap")
    if why := _why_not():
        report(why)


@dataclass(frozen=True)
class Image:
    """A built image: the folder of its files, and its configuration by OCI's names (User, Env, Labels, ...)."""

    root: Path
    config: Mapping[str, Any]

    def process(
        self, *command: str, read_only: Mapping[str, Path] | None = None, writable: Mapping[str, Path] | None = None
    ) -> list[str]:
        """Return the command that runs another one as the image's user, as process 1 on a read-only root.

        It has this machine's network and further folders by their paths in the image, and no capabilities. Process 1 is
        the only child of the command's. It must be killed itself: the kernel forgets that it should end with its parent
        when it changes its user.
        """
        user, group = (self.config.get("User") or "0:0").split(":")
        limits = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        inside = ["setpriv", f"--reuid={user}", f"--regid={group}", *limits]
        inside += ["env", "-i", f"--chdir={self.config.get('WorkingDir') or '/'}", *self.config["Env"], *command]
        folders = [
            f"{name}={' '.join(f'{source}:{target}' for target, source in (given or {}).items())}"
            for name, given in (("READ_ONLY", read_only), ("WRITABLE", writable))
        ]
        return [*_OWN_NAMESPACES, "env", *folders, "sh", "-euc", _ENTER, "enter", str(self.root), *inside]

    def output(self, *command: str) -> str:
        """Run a command in place of the entrypoint; return its output."""
        return _run(self.process(*command), timeout_s=300)


class Builder:
    """Builds images from a Dockerfile. All that it writes is below one folder, which `close` removes."""

    def __init__(self, dockerfile: Path, folder: Path) -> None:
        """Take a Dockerfile, whose context is the repository, and an empty folder."""
        self._dockerfile = dockerfile
        self._folder = folder
        # buildah keeps the caches of RUN below TMPDIR.
        self._environment = os.environ | {"TMPDIR": str(folder / "tmp"), "BUILDAH_ISOLATION": "chroot"}
        for name in ("tmp", "pip"):
            (folder / name).mkdir()
        self._mounts = _lend_pip(folder / "pip")

    def build(self, target: str, **build_args: str) -> Image:
        """Build a stage with those that it needs. An instruction that fails raises AssertionError with its output."""
        given = [f"--build-arg={name}={value}" for name, value in {"DEBIAN": _BASE, **build_args}.items()]
        options = [f"--file={self._dockerfile}", f"--target={target}", f"--tag={target}"]
        # OCI's format has no SHELL.
        self._buildah("bud", "--pull-never", "--format=docker", *options, *given, *self._mounts, str(ROOT))
        described = json.loads(self._buildah("inspect", "--type=image", target))
        container = self._buildah("from", "--pull-never", target)
        return Image(Path(self._buildah("mount", container)), described["OCIv1"]["config"])

    def close(self) -> None:
        """Remove the images and their files."""
        self._buildah("umount", "--all")
        self._buildah("rm", "--all")
        shutil.rmtree(self._folder)

    def make_base(self) -> None:
        """Make the image that stands in for the only one from outside."""
        container = self._buildah("from", "scratch")
        root, mirror = Path(self._buildah("mount", container)), _mirror()
        # It mounts /proc and /sys below the folder.
        system = ("--variant=minbase", "--include=ca-certificates", "bookworm", str(root), mirror)
        _run([*_OWN_NAMESPACES, "debootstrap", *system])
        sources = (f"{mirror} bookworm", f"{mirror} bookworm-updates", f"{mirror}-security bookworm-security")
        (root / "etc/apt/sources.list").write_text("".join(f"deb {each} main\n" for each in sources), encoding="utf-8")
        (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM, encoding="utf-8")
        self._buildah("config", "--env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        self._buildah("commit", "--rm", container, _BASE)

    def _buildah(self, *arguments: str) -> str:
        storage = (f"--root={self._folder / 'storage'}", f"--runroot={self._folder / 'run'}")
        return _run(["buildah", *storage, *arguments], self._environment).strip()


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{shlex.join(command)}:\n{(done.stdout + done.stderr)[-6000:]}"
    return done.stdout


def _mirror() -> str:
    """Return the archive of Debian that this machine's apt uses; mirrors have the security updates beside it."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    return next(uri for uri in _run(command).split() if uri.rstrip("/").endswith("/debian")).rstrip("/")


def _lend_pip(folder: Path) -> list[str]:
    """Write the indexes of this machine's pip as settings of the build's root; return the options that mount them."""
    mounts, settings = {folder: _PIP_HOME}, {"retries": "1"}
    for line in _run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        key, _, text = line.partition("=")
        name, value = key.rpartition(".")[2], ast.literal_eval(text)
        if name == "cert":
            shutil.copy(value, folder / "ca.crt")
            settings[name] = f"{_PIP_HOME}/ca.crt"
        elif name in _PIP_SETTINGS:
            settings[name] = " ".join(value.split())
            for word in value.split():
                path = Path(word.removeprefix("file://"))
                if path.is_absolute():  # the files of an index lie beside it
                    found = path.parent if word.startswith("file://") else path
                    mounts[found] = str(found)
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (folder / "pip.conf").write_text(f"[global]\n{lines}", encoding="utf-8")
    return [f"--volume={source}:{target}:ro" for source, target in mounts.items()]
