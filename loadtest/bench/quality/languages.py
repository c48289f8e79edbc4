"""The languages of the corpus: their files, their blocks and their syntax errors, by tree-sitter.

The grammars are in the development requirements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser


@dataclass(frozen=True)
class Language:
    """A language. `name` is its id in the Language Server Protocol."""

    name: str
    suffixes: tuple[str, ...]
    grammar: str
    """The function that returns the grammar, as MODULE:FUNCTION."""
    block: str = ""
    """The type of the nodes that are blocks of statements; "" if the language has none."""

    @cached_property
    def _parser(self) -> Parser:
        module, _, function = self.grammar.partition(":")
        return Parser(Grammar(getattr(import_module(module), function)()))

    def num_errors(self, text: str) -> int:
        """Return the number of ERROR and MISSING nodes of a file's syntax tree."""
        return sum(node.is_error or node.is_missing for node in _nodes(self._parse(text), only_errors=True))

    def bodies(self, text: str) -> Iterator[tuple[int, int]]:
        """Return the ranges of characters of the statements in each block, without the docstring of a function."""
        data = text.encode()
        for node in _nodes(self._parse(text)):
            if node.type == self.block and self.block:
                statements = node.named_children
                if statements and _is_docstring(statements[0]):
                    statements = statements[1:]
                if statements:
                    start, end = statements[0].start_byte, statements[-1].end_byte
                    yield len(data[:start].decode()), len(data[:end].decode())

    def _parse(self, text: str) -> Node:
        return self._parser.parse(text.encode()).root_node


def _nodes(root: Node, *, only_errors: bool = False) -> Iterator[Node]:
    """Return the nodes of a tree in order; with `only_errors` those that are, or contain, an error."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (child for child in reversed(node.children) if child.has_error or not only_errors)


def _is_docstring(statement: Node) -> bool:
    return statement.type == "expression_statement" and statement.children[0].type == "string"


LANGUAGES = (
    Language("python", (".py",), "tree_sitter_python:language", "block"),
    Language("typescript", (".ts", ".mts"), "tree_sitter_typescript:language_typescript", "statement_block"),
    Language("javascript", (".js", ".mjs"), "tree_sitter_javascript:language", "statement_block"),
    Language("c", (".c",), "tree_sitter_c:language", "compound_statement"),
    Language("cpp", (".h", ".hpp", ".cc", ".cpp", ".cuh"), "tree_sitter_cpp:language", "compound_statement"),
    Language("css", (".css",), "tree_sitter_css:language", "block"),
    Language("html", (".html",), "tree_sitter_html:language"),
    Language("json", (".json",), "tree_sitter_json:language"),
    Language("yaml", (".yaml", ".yml"), "tree_sitter_yaml:language"),
    Language("markdown", (".md",), "tree_sitter_markdown:language"),
)
BY_NAME: Mapping[str, Language] = {each.name: each for each in LANGUAGES}
