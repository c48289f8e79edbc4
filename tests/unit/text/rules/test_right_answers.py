"""Right answers that look like faults of a model: each is shown whole, also if the model goes on with the file."""

import pytest

from completion_server.core.request import Mode
from tests.unit.text.rules.rules import complete, request_at

BLOCKS = {
    "a Go block that is like the one below": (
        "go",
        "func f() error {\n\t‸\n\tif err := third(); err != nil {\n\t\treturn err\n\t}\n\treturn nil\n}\n",
        "if err := second(); err != nil {\n\t\treturn err\n\t}",
    ),
    "an object of JSON that is like the next one": (
        "json",
        '[\n  ‸\n  {\n    "id": 3,\n    "on": true\n  },\n  {\n    "id": 4,\n    "on": true\n  }\n]\n',
        '{\n    "id": 2,\n    "on": true\n  },',
    ),
    "a rule of CSS that is like the next one": (
        "css",
        "‸\n.b {\n  color: red;\n  margin: 0;\n}\n\n.c {\n  color: red;\n}\n",
        ".a {\n  color: red;\n  margin: 0;\n}",
    ),
    "a literal of Rust that is like the next one": (
        "rust",
        'let all = vec![\n    ‸\n    Item {\n        name: "b",\n        on: true,\n    },\n];\n',
        'Item {\n        name: "a",\n        on: true,\n    },',
    ),
    "an object of JavaScript that is like the next one": (
        "javascript",
        "export const all = [\n  ‸\n  {\n    id: 3,\n    on: true,\n  },\n];\n",
        "{\n    id: 2,\n    on: true,\n  },",
    ),
    "an element whose first lines are the next one's": (
        "html",
        '<ul>\n  ‸\n  <li>\n    <a href="#">\n      Two\n    </a>\n  </li>\n</ul>\n',
        '<li>\n    <a href="#">\n      One\n    </a>\n  </li>',
    ),
    "a method above one with the same decorator": (
        "python",
        "class A:\n    ‸\n\n    @property\n    def b(self):\n        return self._b\n",
        "@property\n    def a(self):\n        return self._a",
    ),
    "a decorator of several lines": (
        "python",
        "class A:\n    @cache(‸\n\n    @cache(\n        size=8,\n    )\n    def b(self):\n        return 2\n",
        "\n        size=4,\n    )\n    def a(self):\n        return 1",
    ),
    "an item of YAML above one with the same first keys": (
        "yaml",
        "steps:\n  ‸\n  - uses: checkout\n    with:\n      ref: main\n",
        "- uses: checkout\n    with:\n      ref: next",
    ),
    "lines below that stand there in another order": (
        "python",
        "def f():\n    ‸\n    a()\n    b()\n    c()\n",
        "x()\n    b()\n    c()",
    ),
    "a string of several lines at the margin": (
        "python",
        "def f():\n    ‸\n    return text\n",
        'text = """\nusage: f\n  --all\n"""\n    text += "."',
    ),
    "a template of JavaScript at the margin": (
        "javascript",
        "function f() {\n  ‸\n  return text;\n}\n",
        "const text = `\nusage: f {\n`;",
    ),
    "a closing brace above the end of a namespace": (
        "cpp",
        "namespace a {\nint f() {‸\n\n}  // namespace a\n",
        "\n  return 1;\n}",
    ),
    "a closing brace above a directive": ("c", "#ifdef A\nint f() {‸\n#endif\n", "\n  return 1;\n}"),
    "the body of a function whose head has several lines": (
        "java",
        "class A {\n  int f(\n      int a,\n      int b) {\n    if (a == b) {\n      ‸\n    }\n    return 0;\n  }\n}\n",
        "return 1;",
    ),
    "an else on a line of its own": (
        "c",
        "void f() {\n    if (a) {‸\n    c();\n}\n",
        "\n        a();\n    }\n    else {\n        b();\n    }",
    ),
    "a chain after a closing bracket": (
        "javascript",
        "load(‸\n\nnext();\n",
        "\n  url,\n)\n  .then(show)\n  .catch(report);",
    ),
    "a tag whose attributes have lines of their own": (
        "html",
        "<div>\n  <img\n    ‸\n  <p>\n  </p>\n</div>\n",
        'src="a.png"\n    alt="A"\n  />',
    ),
}


@pytest.mark.parametrize(("language_id", "document", "text"), BLOCKS.values(), ids=BLOCKS)
def test_a_right_block_is_shown_whole(language_id: str, document: str, text: str) -> None:
    request = request_at(document, mode=Mode.MULTI_LINE, language_id=language_id)
    assert complete(request, text) == text
    assert complete(request, text + request.suffix, is_cut=True) == text


ENDS = {
    "ruby": ("def f(x)‸\n\ndef g\nend\n", "\n  x + 1\nend"),
    "lua": ("function f(x)‸\n\nlocal y = 1\n", "\n  return x\nend"),
    "elixir": ("def f(x) do‸\n\n@doc 1\n", "\n  x\nend"),
    "julia": ("function f(x)‸\n\ny = 1\n", "\n    x\nend"),
    "bash": ('if [ -n "$1" ]; then‸\n\necho "$2"\n', '\n  echo "$1"\nfi'),
    "sh": ("for f in *; do‸\n\nexit 0\n", '\n  rm "$f"\ndone'),
    "zsh": ('case "$1" in‸\n\nexit 0\n', "\n  start) run ;;\nesac"),
    "tcsh": ("if ($a) then‸\n\necho b\n", "\n  echo a\nendif"),
    "fish": ("if test -n $x‸\n\necho a\n", "\n    echo $x\nend"),
    "vim": ("function! s:f()‸\n\nlet x = 1\n", "\n  return 1\nendfunction"),
    "cmake": ("if(WIN32)‸\n\nproject(a)\n", "\n  add_library(a)\nendif()"),
    "vb": ("Sub F()‸\n\nSub G()\nEnd Sub\n", "\n    Run()\nEnd Sub"),
    "pascal": ("begin‸\n\nx := 1;\n", "\n  writeln(1);\nend;"),
    "plsql": ("BEGIN‸\n\n/\n", "\n  commit;\nEND;"),
    "verilog": ("always @(posedge clk) begin‸\n\nassign a = b;\n", "\n  q <= d;\nend"),
    "fortran": ("do i = 1, n‸\n\ncall f()\n", "\n  s = s + i\nend do"),
    "matlab": ("for i = 1:n‸\n\ny = 1;\n", "\n  s = s + i;\nend"),
    "latex": ("\\begin{itemize}‸\n\nText\n", "\n  \\item one\n\\end{itemize}"),
    "jinja": ("{% if a %}‸\n\n<p>\n", "\n  <b>{{ a }}</b>\n{% endif %}"),
}


KNOWN_ONLY = {"latex"}
"""Languages whose end of a block the text alone does not tell."""


@pytest.mark.parametrize(
    ("language_id", "document", "text"),
    [
        *((name, document, text) for name, (document, text) in ENDS.items()),
        *(("", document, text) for name, (document, text) in ENDS.items() if name not in KNOWN_ONLY),
    ],
)
def test_the_line_that_ends_a_block_is_shown_also_in_an_unknown_language(
    language_id: str, document: str, text: str
) -> None:
    request = request_at(document, mode=Mode.MULTI_LINE, language_id=language_id)
    assert complete(request, text) == text
    assert complete(request, text + request.suffix, is_cut=True) == text


@pytest.mark.parametrize("language_id", ["", "python", "javascript", "markdown"])
@pytest.mark.parametrize("after", ["end = 1\n", "done()\n", "next.value = 2\n", "fi: int\n"])
def test_a_name_is_no_word_that_ends_a_block(language_id: str, after: str) -> None:
    request = request_at("for x in y:‸\n", mode=Mode.MULTI_LINE, language_id=language_id)
    assert complete(request, f"\n    a()\n{after}") == "\n    a()"
    request = request_at("for (x of y)‸\n", mode=Mode.MULTI_LINE, language_id=language_id)
    assert complete(request, f"\n    a()\n{after}") == "\n    a()"


LINES = {
    "a bracket of an earlier line before a comment": ("python", "foo(\n    ‸)  # noqa\n", "g(x)"),
    "braces before a comment": ("python", "x = [\n    ‸]  # noqa\n", "{}"),
    "a second value in a string": ("python", 'x = f"{‸}"\n', "a} of {b"),
    "an apostrophe in Markdown": ("markdown", "Here's the rule (‸)\n", "same as round(x)"),
    "an apostrophe in a comment": ("python", "x = 1  # it's the sum (‸)\n", "of f(x)"),
    "an apostrophe of an unknown language": ("", "Don't call this (‸)\n", "see round(x)"),
    "a plural's apostrophe": ("", "the users' names (‸)\n", "as in names(x)"),
    "a quote of Lisp": ("lisp", "(plus '(1 2) ‸))\n", "(f '(a b)"),
    "a quote of Emacs Lisp": ("emacs-lisp", "(add-hook 'a (lambda () ‸))\n", "(b 'c)"),
    "a quote of Racket": ("racket", "(plus 'a ‸)\n", "(f 'b)"),
    "a generic type": ("java", "Map<‸> all;\n", "String, List<Integer>"),
    "a generic type of C++": ("cpp", "std::map<‸>\n", "int, std::vector<int>"),
    "a generic type of an unknown language": ("", "let x: Map<‸>;\n", "String, Vec<u8>"),
    "an element": ("html", "<div>‸</div>\n", "<div>x</div>"),
    "a number of Verilog": ("systemverilog", "assign x = f(8'h‸);\n", "3f"),
    "a number of Verilog in an unknown language": ("", "assign x = f(8'h‸);\n", "3f"),
    "a lifetime of Rust": ("rust", "fn f(‸) {\n", "x: &'a str, y: &'b str"),
    "a bracket in quotes of Rust": ("rust", "let x = f(‸);\n", "a, '(', b"),
    "a prime of Haskell": ("haskell", "f x = g (‸)\n", "x' + h (y)"),
    "digits with separators": ("cpp", "f(‸);\n", "1'000'000"),
    "an option with a quote": ("shellscript", "x=$(‸)\n", "cut -d' ' -f1 a | cut -d')' -f2"),
    "the value of a key of JSON": ("json", '{\n  "lim‸",\n  "b": 2\n}\n', 'it_key": "MaxResults'),
    "the last value of a key of JSON": ("json", '{\n  "lim‸"\n}\n', 'it_key": "MaxResults'),
    "an object of JSON": ("json", '{"da‸": 18},\n', 'ta": {"a": 21, "aaaa'),
    "a second string": ("python", 'f("a‸")\n', '", "b'),
    "a docstring": ("python", 'def f():\n    "‸"\n', '""Return one.""'),
    "the head of a function inside a call": ("javascript", "on('a', function (b, ‸) {\n", "c"),
    "a backtick of PowerShell": ("powershell", '$a = "/i‸"\n', ' `"$b`" /quiet'),
    "a second call": ("python", "x = f(‸)\n", "a) + g(b"),
    "a link": ("markdown", "See ‸(a.html).\n", "the [page]"),
    "a zero UUID": ("python", 'ZERO = "‸"\n', "00000000-0000-0000-0000-000000000000"),
    "words that repeat": ("json", '{"a": "‸"}\n', "{cycles,cycles,cycles,cycles,cycles}"),
    "a pattern of equal groups": ("python", "IP = re.compile(‸)\n", r'r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})"'),
    "a row of zeros": ("c", "int x[] = {‸};\n", ", ".join(["0x00"] * 16)),
    "Thai": ("markdown", "ภาษาไ‸\n", "ทยและพม่า"),
    "Burmese": ("", "// မြန်မ‸\n", "ာစာ"),
    "a vowel sign right after its letter": ("markdown", "ก‸\n", "ำลัง"),
}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("language_id", "document", "text"), LINES.values(), ids=LINES)
def test_a_right_line_is_shown_whole(language_id: str, document: str, text: str, mode: Mode) -> None:
    request = request_at(document, language_id=language_id, mode=mode)
    assert complete(request, text) == text
    assert complete(request, text + request.suffix, is_cut=True) == text
    assert "\ufffd" not in complete(request, text)
