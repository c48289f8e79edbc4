"""Builds an image as a folder: carries out a Dockerfile's instructions in root folders, without a container engine.

It does what BuildKit does with the instructions that `dockerfile.py` knows, except that there are no layers. A stage is
a folder, and shares files with other stages as hard links. A build whose later stage changes a shared file fails.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from tests.support.containers import Bind, Process
from tests.support.dockerfile import Dockerfile, DockerfileError, Ignored, Instruction, expanded, key_values

LENT = "/run/lent"
"""Where the build sees folders of this machine. They leave no trace in the image."""
_WRITTEN = ("etc", "var", "root", "run")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BuildError(Exception):
    """An instruction failed; the message has its line and the end of its output."""


@dataclass(frozen=True)
class Image:
    """A built stage: its files, and what the image says of how to run it."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    shell: Sequence[str] = ("/bin/sh", "-c")
    folder: str = "/"
    user: str = "0:0"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    ports: Sequence[str] = ()
    stop_signal: str = "SIGTERM"

    def process(self, *command: str, **options: object) -> Process:
        """Return a process of the image, as a container engine starts it: by its entrypoint, as its user."""
        user, group = map(int, self.user.split(":"))
        argv = [*self.entrypoint, *(command or self.command)]
        return Process(self.root, argv, self.environment, folder=self.folder, user=(user, group), **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Host:
    """What this machine lends to the build: folders, and variables of RUN such as pip's indexes."""

    context: Path
    ignored: Ignored
    work: Path
    """Folder for the stages."""
    caches: Path
    """Folder for `--mount=type=cache`."""
    get_base: Callable[[str, Path], None]
    """Fills a folder with the files of an image from outside."""
    environment: Mapping[str, str] = field(default_factory=dict)
    binds: Sequence[Bind] = ()


class ImageBuild:
    """Builds stages, each once, in folders below `host.work`."""

    def __init__(self, dockerfile: Dockerfile, host: Host) -> None:
        """Take a Dockerfile with its build arguments."""
        self._file = dockerfile
        self._host = host
        self._built: dict[str, Image] = {}
        self._states: dict[str, dict[str, tuple[int, ...]]] = {}

    def build(self, name: str) -> Image:
        """Build a stage and those that it needs.

        Raises:
            BuildError: an instruction failed.
            DockerfileError: it has something that is not known here.

        """
        if name not in self._built:
            stage = self._file.stages[name]
            root = self._host.work / name
            if stage.base in self._file.stages:
                base = self.build(stage.base)
                _derive(base.root, root)
                image = replace(base, root=root, arguments={})
            else:
                root.mkdir(parents=True)
                self._host.get_base(stage.base, root)
                image = Image(root)
            for each in stage.instructions:
                image = self._carry_out(each, image)
            self._built[name] = image
            self._states[name] = _state(root)
        return self._built[name]

    def check_shared_files(self) -> None:
        """Check that no stage has changed a file of another one.

        Raises:
            BuildError: one has.

        """
        for name, state in self._states.items():
            now = _state(self._built[name].root)
            if changed := [path for path in now if now[path] != state.get(path)]:
                raise BuildError(f"another stage changed files of {name}: {changed[:5]}")

    def _carry_out(self, instruction: Instruction, image: Image) -> Image:
        name, value, line = instruction.name, instruction.value, instruction.line
        values = {**image.arguments, **image.environment}
        if name in {"RUN", "COPY"}:
            (self._run if name == "RUN" else self._copy)(instruction, image)
            return image
        match name:
            case "ARG":
                name, _, default = value.partition("=")
                given = self._file.arguments.get(name, expanded(default, values, line))
                return replace(image, arguments={**image.arguments, name: given})
            case "ENV":
                return replace(image, environment={**image.environment, **key_values(instruction, values)})
            case "LABEL":
                return replace(image, labels={**image.labels, **key_values(instruction, values)})
            case "WORKDIR":
                folder = str(PurePosixPath(image.folder, expanded(value, values, line)))
                inside(image.root, folder).mkdir(parents=True, exist_ok=True)
                return replace(image, folder=folder)
            case _:
                return _with_metadata(instruction, image)

    def _run(self, instruction: Instruction, image: Image) -> None:
        options, command = instruction.options("mount")
        binds = [*self._host.binds]
        for _, value in options:
            mount = dict(part.partition("=")[::2] for part in value.split(","))
            if set(mount) != {"type", "target"} or mount["type"] != "cache":
                raise DockerfileError(f"line {instruction.line}: --mount={value} is not known here")
            cache = self._host.caches / mount["target"].strip("/").replace("/", "-")
            cache.mkdir(parents=True, exist_ok=True)
            binds.append(Bind(cache, mount["target"], read_only=False))
        if image.user != "0:0":
            raise DockerfileError(f"line {instruction.line}: RUN as another user than root is not known here")
        environment = {**image.arguments, **self._host.environment, "HOME": "/root", **image.environment}
        process = Process(image.root, [*image.shell, command], environment, binds, folder=image.folder)
        _run(process.argv(), f"line {instruction.line}: RUN {command}")
        shutil.rmtree(inside(image.root, LENT), ignore_errors=True)  # empty again

    def _copy(self, instruction: Instruction, image: Image) -> None:
        options, rest = instruction.options("from")
        *sources, target = rest.split()
        destination = inside(image.root, str(PurePosixPath(image.folder, target)))
        into_folder = target.endswith("/") or len(sources) > 1
        for source in sources:
            if options:
                path = inside(self.build(options[0][1]).root, source)
                self._link(path, destination, instruction, into_folder=into_folder)
            else:
                self._copy_from_context(PurePosixPath(source), destination, instruction, into_folder=into_folder)

    def _link(self, source: Path, destination: Path, instruction: Instruction, *, into_folder: bool) -> None:
        where = f"line {instruction.line}: COPY {instruction.value}"
        if source.is_dir():
            destination.mkdir(parents=True, exist_ok=True)
            _run(["cp", "-al", f"{source}/.", str(destination)], where)
        else:
            destination = destination / source.name if into_folder else destination
            destination.parent.mkdir(parents=True, exist_ok=True)
            _run(["cp", "-al", str(source), str(destination)], where)

    def _copy_from_context(
        self, source: PurePosixPath, destination: Path, instruction: Instruction, *, into_folder: bool
    ) -> None:
        path = self._host.context / source
        found = [each for each in sorted(path.rglob("*")) if each.is_file()] if path.is_dir() else [path]
        context, ignored = self._host.context, self._host.ignored
        files = [each for each in found if PurePosixPath(each.relative_to(context)) not in ignored]
        if not files or not path.exists():
            raise BuildError(f"line {instruction.line}: COPY {source}: not in the context")
        for each in files:
            if path.is_dir():
                to = destination / each.relative_to(path)
            else:
                to = destination / each.name if into_folder else destination
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(each, to)


def inside(root: Path, path: str) -> Path:
    """Return where an absolute path of the image is on this machine."""
    return root / path.lstrip("/")


def _derive(base: Path, root: Path) -> None:
    """Make a stage of another one: hard links, and copies where packages write into files."""
    _run(["cp", "-al", str(base), str(root)], f"FROM {base.name}")
    for each in _WRITTEN:
        shutil.rmtree(root / each)
        _run(["cp", "-a", str(base / each), str(root / each)], f"FROM {base.name}")


def _state(root: Path) -> dict[str, tuple[int, ...]]:
    """Return what a change of a file changes: by its path size, time, mode and owner."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            found[path] = (status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid)
    return found


def _with_metadata(instruction: Instruction, image: Image) -> Image:
    name, value = instruction.name, instruction.value
    match name:
        case "SHELL":
            return replace(image, shell=instruction.words())
        case "USER":
            return replace(image, user=value)
        case "ENTRYPOINT":
            return replace(image, entrypoint=instruction.words(), command=())
        case "CMD":
            return replace(image, command=instruction.words())
        case "EXPOSE":
            return replace(image, ports=[*image.ports, *value.split()])
        case "STOPSIGNAL":
            return replace(image, stop_signal=value)
    raise DockerfileError(f"line {instruction.line}: {name} is not carried out here")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{what} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-6000:]}")
