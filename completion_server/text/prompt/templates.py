"""The fill-in-the-middle formats of the known model families, as data.

Each entry follows the family's model card or technical report, which its comment names. docs/prompt.md shows the
prompts.
"""

from dataclasses import dataclass
from enum import Enum

ALL_LINES = 1_000_000
"""All text before the cursor stands behind the middle marker: "suffix, prefix, middle" in the paper on
fill-in-the-middle (Bavarian et al., 2022, section 3.2). What is typed is only appended then."""


class FimOrder(Enum):
    """The order of the parts of a prompt."""

    PREFIX_FIRST = "prefix_first"
    """before, after, middle marker, typed."""
    SUFFIX_FIRST = "suffix_first"
    """after, before, middle marker if there is one, typed."""
    PREFIX_ONLY = "prefix_only"
    """before and typed; the text right of the cursor is left out."""


class PathAt(Enum):
    """The place of a file's path, in families that were trained on whole repositories."""

    NOWHERE = "nowhere"
    OUTSIDE = "outside"
    """Behind the file marker, and for the file being edited before the first fill-in-the-middle marker."""
    INSIDE = "inside"
    """Behind the file marker, and for the file being edited as the first line behind the prefix marker."""


@dataclass(frozen=True, slots=True)
class Template:
    """A family's format. Markers are the texts of single special tokens; "" is none."""

    name: str
    order: FimOrder = FimOrder.PREFIX_FIRST
    prefix: str = ""
    suffix: str = ""
    middle: str = ""
    file: str = ""
    """Opens each other file, and then also the file being edited. Without this marker snippets are comments."""
    path_at: PathAt = PathAt.NOWHERE
    text_header: str = ""
    """Text that opens each file inside the prefix, with "{path}" replaced; snippets are then no comments."""
    ends: tuple[str, ...] = ()
    """Further tokens that end a completion, if the vocabulary has them; the markers above always do."""
    needs: tuple[str, ...] = ()
    """Further tokens that distinguish the family from others with the same markers."""
    lacks: tuple[str, ...] = ()
    """Tokens that the vocabulary of this family does not have."""
    name_hint: str = ""
    """A part of the model's name that decides between families with the same tokens."""
    lines_behind: int = 0
    """The most lines before the cursor that stand behind the middle marker: 0, the cursor's line (1), more, or
    `ALL_LINES`. The marker moves to the cursor's line when there would be more."""

    @property
    def is_all_typed(self) -> bool:
        """Whether all text before the cursor stands behind the middle marker."""
        return bool(self.middle) and self.lines_behind >= ALL_LINES

    @property
    def has_typed(self) -> bool:
        """Whether text before the cursor stands behind the middle marker."""
        return bool(self.middle) and self.lines_behind > 0

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers that the prompt is built with."""
        return tuple(marker for marker in (self.prefix, self.suffix, self.middle, self.file) if marker)


PREFIX_ONLY = Template("prefix-only", FimOrder.PREFIX_ONLY)

_ANGLE = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

EMBEDDED = Template(
    "embedded",
    FimOrder.PREFIX_FIRST,
    *_PIPED,
    file="<|file_sep|>",
    needs=("<|endoftext|>",),
    lacks=("<|repo_name|>",),
    lines_behind=1,
)
"""The template of the models that are trained in this repository."""

FAMILIES: tuple[Template, ...] = (
    # CodeLlama-7b-hf and "Code Llama: Open Foundation Models for Code", section 2.3: half of the training has the form
    # "<PRE> <SUF>{after} <MID> {before}".
    Template("codellama", prefix="▁<PRE>", suffix="▁<SUF>", middle="▁<MID>", ends=("▁<EOT>",), lines_behind=ALL_LINES),
    # deepseek-coder-6.7b-base, "Code Insertion": begin, before, hole, after, end, and the model fills the hole.
    Template("deepseek", prefix="<｜fim▁begin｜>", suffix="<｜fim▁hole｜>", middle="<｜fim▁end｜>", ends=("<|EOT|>",)),
    # Codestral-22B-v0.1 and mistral-common's encode_fim: suffix first, no middle marker; other files open with "+++++
    # path".
    Template(
        "codestral",
        FimOrder.SUFFIX_FIRST,
        prefix="[PREFIX]",
        suffix="[SUFFIX]",
        text_header="+++++ {path}\n",
        ends=("[MIDDLE]",),
    ),
    # codegemma-2b: no blank between the markers and the text; the path stands before the first marker. Half of the
    # training has the suffix first ("CodeGemma").
    Template(
        "codegemma",
        FimOrder.PREFIX_FIRST,
        *_PIPED,
        file="<|file_separator|>",
        path_at=PathAt.OUTSIDE,
        needs=("<|file_separator|>",),
        lines_behind=ALL_LINES,
    ),
    # Qwen2.5-Coder and its technical report, "File-Level" and "Repo-Level Pretraining". That has the prefix first;
    # make bench-quality found the suffix first no worse (docs/models.md).
    Template(
        "qwen",
        FimOrder.PREFIX_FIRST,
        *_PIPED,
        file="<|file_sep|>",
        path_at=PathAt.OUTSIDE,
        needs=("<|repo_name|>",),
        ends=("<|fim_pad|>", "<|repo_name|>", "<|endoftext|>", "<|im_end|>"),
        lines_behind=ALL_LINES,
    ),
    # granite-4.0 language models, "Fill-in-the-Middle".
    Template(
        "granite4",
        FimOrder.PREFIX_FIRST,
        *_PIPED,
        needs=("<|end_of_text|>",),
        ends=("<|fim_pad|>", "<|filename|>", "<|reponame|>"),
    ),
    EMBEDDED,
    # "StarCoder 2 and The Stack v2", section 5.1: file_sep, path, code, ..., file_sep, fim_prefix, path, before, ...
    # Half of the training has the suffix first.
    Template(
        "starcoder2",
        FimOrder.PREFIX_FIRST,
        *_ANGLE,
        file="<file_sep>",
        path_at=PathAt.INSIDE,
        ends=("<fim_pad>", "<repo_name>", "<|endoftext|>"),
        lines_behind=ALL_LINES,
    ),
    # Mellum-4b-base, "Fill-in-the-middle with additional files as context": suffix first, with a middle marker.
    Template(
        "mellum",
        FimOrder.SUFFIX_FIRST,
        *_ANGLE,
        file="<filename>",
        path_at=PathAt.OUTSIDE,
        lacks=("<gh_stars>",),
        name_hint="mellum",
        ends=("<fim_pad>", "<reponame>", "<|endoftext|>"),
    ),
    # "Seed-Coder", on fill-in-the-middle training: suffix, prefix, middle. Zeta 2 is fine-tuned from it.
    Template(
        "seedcoder",
        FimOrder.SUFFIX_FIRST,
        prefix="<[fim-prefix]>",
        suffix="<[fim-suffix]>",
        middle="<[fim-middle]>",
        ends=("<filename>", "<[end▁of▁sentence]>"),
    ),
    # granite-8b-code-base and granite-3.3-8b-base; StarCoder of the first generation is asked the same way. Both were
    # trained with the suffix first, too ("Granite Code Models", "StarCoder").
    Template(
        "granite",
        FimOrder.PREFIX_FIRST,
        *_ANGLE,
        ends=("<fim_pad>", "<filename>", "<reponame>", "<|endoftext|>", "<|end_of_text|>"),
        lines_behind=ALL_LINES,
    ),
    # Any other model with these markers: the common order, snippets as comments.
    Template("fim", FimOrder.PREFIX_FIRST, *_PIPED, ends=("<|fim_pad|>", "<|endoftext|>")),
)
