"""Renders pieces of other files in front of a prompt, as the server renders an editor's snippets.

They stand behind file markers, under text headers in the prefix, or as comments there, as the template says.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from completion_server.prompt.templates import PathAt, Template

PATH_PARTS = 3
HASH_ENDINGS = (
    "dockerfile", "makefile", ".cmake", ".coffee", ".ex", ".exs", ".jl", ".mk", ".nim", ".pl", ".ps1", ".py", ".pyi",
    ".r", ".rb", ".sh", ".toml", ".yaml", ".yml",
)  # fmt: skip
DASH_ENDINGS = (".adb", ".ads", ".elm", ".hs", ".lua", ".sql", ".vhd", ".vhdl")


@dataclass(frozen=True)
class Snippet:
    """A piece of another file, in whole lines."""

    path: str
    text: str


@dataclass(frozen=True)
class PromptContext:
    """The path of the edited file, and the snippets that its prompt shows; the best snippet is the last."""

    path: str = ""
    snippets: tuple[Snippet, ...] = ()


NO_CONTEXT = PromptContext()


def file_texts(template: Template, context: PromptContext) -> list[str]:
    """The texts behind file markers, which stand before the first marker of the prompt itself."""
    if not (template.file and context.snippets):
        return []
    if template.path_at is PathAt.NOWHERE:
        return [_whole(snippet) for snippet in context.snippets]
    texts = [f"{short_path(snippet.path)}\n{_whole(snippet)}" for snippet in context.snippets]
    return [*texts, f"{short_path(context.path)}\n" if template.path_at is PathAt.OUTSIDE else ""]


def lead_of(template: Template, context: PromptContext) -> str:
    """The text at the start of the prefix: headers, comments or the path, as the template says."""
    if not context.snippets:
        return ""
    own = short_path(context.path)
    if template.file:
        return f"{own}\n" if template.path_at is PathAt.INSIDE else ""
    if template.text_header:
        texts = [_headed(template, short_path(snippet.path)) + _whole(snippet) for snippet in context.snippets]
        return "".join([*texts, _headed(template, own)])
    leader = comment_leader(context.path)
    lines = [line for each in context.snippets for line in (f"{short_path(each.path)}:", *_whole(each).splitlines())]
    return "".join(f"{leader} {line}".rstrip() + "\n" for line in lines)


def short_path(path: str) -> str:
    """The last parts of a path, on one line."""
    return " ".join("/".join(PurePosixPath(path).parts[-PATH_PARTS:]).split())


def comment_leader(path: str) -> str:
    """The characters that open a line comment in a file of this name."""
    if path.lower().endswith(HASH_ENDINGS):
        return "#"
    return "--" if path.lower().endswith(DASH_ENDINGS) else "//"


def _whole(snippet: Snippet) -> str:
    return snippet.text.rstrip("\r\n") + "\n"


def _headed(template: Template, path: str) -> str:
    return template.text_header.replace("{path}", path)
