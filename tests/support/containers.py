"""Processes in namespaces and a root folder of their own, as a container engine starts them. Needs root on Linux."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PROGRAMS = ("unshare", "chroot", "mount", "debootstrap")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Bind:
    """A path of this machine that is mounted at a path of the root folder."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class Process:
    """What runs in a root folder, and what it sees there."""

    root: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    binds: Sequence[Bind] = ()
    memory_folders: Sequence[str] = ()
    """Paths with a file system in memory, which everybody may write."""
    folder: str = "/"
    user: tuple[int, int] = (0, 0)
    """User id and group id. Another user than root gets no capabilities, and can't get any."""
    is_read_only: bool = False

    def argv(self) -> list[str]:
        """Return the command that runs it as process 1 of namespaces of its own, with this machine's network.

        Process 1 is the only child of the command's. It must be killed itself: the kernel forgets that it should end
        with its parent when it changes its user.
        """
        unshare = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private"]
        return [*unshare, "env", f"PATH={_SYSTEM_PATH}", "sh", "-euc", "\n".join([*self._mounts(), self._start()])]

    def _mounts(self) -> list[str]:
        root = shlex.quote(str(self.root))
        lines = [f"mount --rbind {root} {root}", f"cd {root}", "mount -t proc proc proc", "mount --rbind /sys sys"]
        lines += ["mount -t tmpfs -o mode=755 tmpfs dev", "mkdir -p dev/shm"]
        lines += ["mount -t tmpfs -o mode=1777 tmpfs dev/shm"]
        lines += [f"touch dev/{each}; mount --bind /dev/{each} dev/{each}" for each in _DEVICES]
        lines.append("ln -s /proc/self/fd dev/fd")
        for bind in self.binds:
            source, target = shlex.quote(str(bind.source)), shlex.quote(bind.target.lstrip("/"))
            make = f"mkdir -p {target}" if bind.source.is_dir() else f"mkdir -p $(dirname {target}); touch {target}"
            lines += [f"test -e {target} || {{ {make}; }}", f"mount --bind {source} {target}"]
            if bind.read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        for each in self.memory_folders:
            target = shlex.quote(each.lstrip("/"))
            lines.append(f"mkdir -p {target}; mount -t tmpfs -o mode=1777 tmpfs {target}")
        if self.is_read_only:
            lines.append(f"mount -o remount,bind,ro {root}")
        return lines

    def _start(self) -> str:
        user, group = self.user
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        limits = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if user else []
        ids = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *limits]
        return "exec " + shlex.join(
            ["chroot", str(self.root), *ids, "env", "-i", f"--chdir={self.folder}", *variables, *self.command]
        )


@cache
def _why_not() -> str:
    if missing := [each for each in PROGRAMS if shutil.which(each) is None]:
        return f"{', '.join(missing)} not found; on Debian: apt-get install debootstrap util-linux"
    if os.geteuid():
        return "a root folder of its own needs root"
    trial = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"this machine gives no namespaces: {done.stderr.strip()}" if done.returncode else ""


def require_containers() -> None:
    """Skip the test on a machine where this can't work, and fail it if CI is set."""
    if why := _why_not():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
