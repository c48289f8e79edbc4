"""Sweep Next-Edit, which is fine-tuned from Qwen2.5-Coder.

After the model's card and its run_model.py: related files, the recent edits as text before and after, then the window
around the cursor before the last edit and now. The model writes the whole window anew.
"""

from typing import ClassVar

from completion_server.text.prompt.edits.region import Reach, Region
from completion_server.text.prompt.edits.template import EditTemplate, Marker, Part, View, without_last_break

_FILE = Marker("<|file_sep|>")


class Sweep(EditTemplate):
    """Sweep Next-Edit of any size."""

    name: ClassVar[str] = "sweep"
    hints: ClassVar[tuple[str, ...]] = ("sweep-next-edit", "sweep_next_edit")
    markers: ClassVar[tuple[str, ...]] = ("<|file_sep|>",)
    ends: ClassVar[tuple[str, ...]] = ("<|endoftext|>", "<|im_end|>", "<|repo_name|>")
    words: ClassVar[tuple[str, ...]] = ("<|file_sep|>", "<|endoftext|>")
    stops: ClassVar[tuple[str, ...]] = ("<|file_sep|>", "<|endoftext|>", "</s>")
    reach: ClassVar[Reach] = Reach(10, 10)
    shown: ClassVar[Reach] = Reach(0, 0)
    max_edits: ClassVar[int] = 3

    def render(self, view: View) -> list[Part]:
        """Return the prompt. Its parts follow each other after one line break."""
        parts: list[Part] = []
        for snippet in view.snippets:
            parts += [_FILE, f"{snippet.path}\n{snippet.text}"]
        for edit in view.edits:
            for hunk in edit.hunks:
                old, new = "\n".join(hunk.old), "\n".join(hunk.new)
                parts += [_FILE, f"{edit.path}.diff\noriginal:\n{old}\nupdated:\n{new}\n"]
        now = view.region.text
        parts += [_FILE, f"original/{view.path}\n{_before_last_edit(view)}\n"]
        return [*parts, _FILE, f"current/{view.path}\n{now}\n", _FILE, f"updated/{view.path}"]

    def read(self, answer: str, region: Region, *, is_stopped: bool) -> str | None:
        """Return the window, which follows the line of its path."""
        if not answer.startswith("\n"):
            return None
        return without_last_break(answer[1:], region, is_stopped=is_stopped)


def _before_last_edit(view: View) -> str:
    """Return the window as it was before the last edit of this document, as far as that edit is in it."""
    text = f"\n{view.region.text}\n"
    own = [edit for edit in view.edits if edit.path == view.path]
    for hunk in own[-1].hunks if own else ():
        new, old = "\n".join(hunk.new), "\n".join(hunk.old)
        if hunk.new and text.count(f"\n{new}\n") == 1:
            text = text.replace(f"\n{new}\n", f"\n{old}\n" if hunk.old else "\n")
    return text[1:-1]
