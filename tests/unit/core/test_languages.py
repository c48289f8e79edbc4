"""The language of a document by its id, its first line or its path."""

import pytest

from completion_server.core.languages import UNKNOWN, language_of


@pytest.mark.parametrize(
    ("language_id", "path", "text_head", "name"),
    [
        ("shellscript", "", "", "Shell"),
        ("sh", "", "", "Shell"),
        ("typescriptreact", "", "", "TSX"),
        ("cs", "", "", "C#"),
        ("SystemVerilog", "", "", "SystemVerilog"),
        ("emacs-lisp", "", "", "Emacs Lisp"),
        ("ruby", "a.py", "#!/bin/sh\n", "Ruby"),
        ("", "file:///a/b/run.sh", "", "Shell"),
        ("", "C:\\a\\Makefile", "", "Makefile"),
        ("", "/a/CMakeLists.txt", "", "CMake"),
        ("", "file:///a/index.d.ts", "", "TypeScript"),
        ("", "file:///a/my%20file.RB", "", "Ruby"),
        ("", "untitled:Untitled-1", "#!/usr/bin/env -S python3.11 -u\n", "Python"),
        ("", "", "#!/bin/bash -e\n", "Shell"),
        ("", "/a/run.1", "#!/usr/bin/env ruby\n", "Ruby"),
        ("plaintext", "a.lua", "", "Lua"),
        ("plaintext", "a.txt", "", "Text"),
        ("plaintext", "", "", ""),
        ("no-such-language", "a.go", "", "Go"),
        ("no-such-language", "", "", ""),
        ("", "a.m", "", ""),
        ("", "", "# no interpreter\n", ""),
        ("", "", "#!", ""),
    ],
)
def test_the_language_of_a_document(language_id: str, path: str, text_head: str, name: str) -> None:
    assert language_of(language_id, path, text_head).name == name


def test_a_language_without_a_syntax_of_its_own_has_that_of_the_unknown_language() -> None:
    assert language_of("no-such-language", "", "").syntax is UNKNOWN.syntax
