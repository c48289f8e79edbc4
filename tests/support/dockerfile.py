"""Reads a Dockerfile and a .dockerignore strictly: what is not known here is an error, never passed over."""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import WordSplitter, extract_key_values

KNOWN = frozenset(
    "ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM LABEL RUN SHELL STOPSIGNAL USER WORKDIR".split()  # noqa: SIM905
)
_FROM = re.compile(r"(?P<image>\S+)(?:\s+AS\s+(?P<name>[a-z][a-z0-9-]*))?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?(\w+)")
_OPTION = re.compile(r"--([a-z]+)=(\S+)\s+")
_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


class DockerfileError(Exception):
    """The file has something that is not known here; the message has the line."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, with its line for messages. Variables are not yet replaced."""

    name: str
    value: str
    line: int

    def options(self, *allowed: str) -> tuple[list[tuple[str, str]], str]:
        """Return the leading `--name=value` options and the rest. An option that is not allowed is an error."""
        found, rest = [], self.value
        while match := _OPTION.match(rest):
            if match[1] not in allowed:
                raise DockerfileError(f"line {self.line}: {self.name} has the option --{match[1]}")
            found.append((match[1], match[2]))
            rest = rest[match.end() :]
        if rest.startswith("--"):
            raise DockerfileError(f"line {self.line}: {self.name} has an option that is not known: {rest.split()[0]}")
        return found, rest

    def words(self) -> list[str]:
        """Return the JSON list of the exec form."""
        found = json.loads(self.value)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise DockerfileError(f"line {self.line}: {self.name} needs a list of strings, not {self.value}")
        return found


@dataclass(frozen=True)
class Stage:
    """A stage, with what it is made of: the name of an earlier stage, or an image from outside."""

    name: str
    base: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True)
class Dockerfile:
    """The stages in their order, and the values of the global build arguments."""

    stages: dict[str, Stage]
    arguments: dict[str, str]

    @classmethod
    def read(cls, path: Path, build_args: Mapping[str, str] | None = None) -> "Dockerfile":
        """Read a file.

        Raises:
            DockerfileError: it has something that is not known here.

        """
        arguments = dict(build_args or {})
        stages: dict[str, Stage] = {}
        stage: Stage | None = None
        for each in instructions_of(path):
            if each.name == "FROM":
                match = _FROM.fullmatch(each.value)
                if match is None:
                    raise DockerfileError(f"line {each.line}: FROM {each.value}")
                image = expanded(match["image"], arguments, each.line)
                stage = Stage(match["name"] or str(len(stages)), image, each.line)
                stages[stage.name] = stage
            elif stage is not None:
                stage.instructions.append(each)
            elif each.name == "ARG":
                name, _, default = each.value.partition("=")
                arguments.setdefault(name, default)
            else:
                raise DockerfileError(f"line {each.line}: {each.name} before FROM")
        return cls(stages, arguments)

    def outside_images(self) -> list[str]:
        """Return the images that stages are made of and that are not stages themselves."""
        return [each.base for each in self.stages.values() if each.base not in self.stages]

    def unpinned_images(self) -> list[str]:
        """Return the images from outside without a digest, those that COPY takes files from among them."""
        copied = [
            value
            for stage in self.stages.values()
            for each in stage.instructions
            if each.name in {"COPY", "RUN"}
            for name, value in each.options("from", "mount", "chown", "chmod")[0]
            if name == "from" and value not in self.stages
        ]
        return [each for each in (*self.outside_images(), *copied) if not _DIGEST.fullmatch(each)]


def instructions_of(path: Path) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile.

    Raises:
        DockerfileError: one is not known here.

    """
    for each in DockerfileParser(fileobj=io.BytesIO(path.read_bytes())).structure:
        name, line = each["instruction"], each["startline"] + 1
        if name == "COMMENT":
            continue
        if name not in KNOWN:
            raise DockerfileError(f"line {line}: the instruction {name} is not known here")
        if "<<" in each["value"]:
            raise DockerfileError(f"line {line}: here-documents are not known here")
        yield Instruction(name, each["value"], line)


def expanded(text: str, values: Mapping[str, str], line: int) -> str:
    """Return a text with its variables replaced; an unknown one is an error."""
    if unknown := [name for name in _VARIABLE.findall(text) if name not in values]:
        raise DockerfileError(f"line {line}: no value for {', '.join(unknown)}")
    return str(WordSplitter(text, args=values).dequote())


def key_values(instruction: Instruction, values: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs of ENV or LABEL."""
    if unknown := [name for name in _VARIABLE.findall(instruction.value) if name not in values]:
        raise DockerfileError(f"line {instruction.line}: no value for {', '.join(unknown)}")
    return dict(extract_key_values(True, values, {}, instruction.value))


class Ignored:
    """The rules of a .dockerignore: names, `*` for a whole name, `**/` for any folder before, `!` for an exception."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Take the lines of the file."""
        self._rules = []
        for each in (line.strip() for line in lines):
            if not each or each.startswith("#"):
                continue
            is_exception = each.startswith("!")
            pattern = each.removeprefix("!")
            if "**" in pattern.removeprefix("**/") or set(pattern) & set("?[]"):
                raise DockerfileError(f".dockerignore: {each} is not known here")
            self._rules.append((is_exception, pattern))

    def __contains__(self, path: PurePosixPath) -> bool:
        """Return whether a path, relative to the context, is left out. The last rule that matches decides."""
        is_ignored = False
        chain = [path, *list(path.parents)[:-1]]
        for is_exception, pattern in self._rules:
            if any(_matches(each, pattern) for each in chain):
                is_ignored = not is_exception
        return is_ignored


def _matches(path: PurePosixPath, pattern: str) -> bool:
    parts = pattern.split("/")
    if parts[0] == "**":
        parts = parts[1:]
        names = path.parts[-len(parts) :]
    else:
        names = path.parts
    return len(names) == len(parts) and all(
        re.fullmatch(re.escape(part).replace(r"\*", ".*"), name) for part, name in zip(parts, names, strict=True)
    )
