// Writes the table of languages, completion_server/core/languages.tsv, from the data of GitHub's linguist (MIT), the folder
// of the npm package linguist-languages: `make languages`.
// A row is a language: its name, its syntax, the ids that editors call it, its file endings, its file names and its
// interpreters. What the rules know of each syntax is in completion_server/core/languages.py.
import path from "node:path";

const folder = path.resolve(process.argv[2]);
const languages = Object.values(await import(path.join(folder, "index.js")));

// The syntax of each language by its own name, else by CodeMirror's mode of it, else by Ace's.
const SYNTAXES = {
  c: [
    "clike",
    "d",
    "swift",
    "dart",
    "protobuf",
    "glsl",
    "actionscript",
    "zig",
    "odin",
    "vala",
    "GraphQL",
    "Solidity",
    "WGSL",
    "HLSL",
    "PHP",
    "Hack",
    "HTML+PHP",
    "Haxe",
    "groovy",
    "Gradle",
    "Bicep",
    "Slang",
    "ANTLR",
    "Thrift",
    "QML",
    "Processing",
  ],
  script: [
    "javascript",
    "jsx",
    "go",
    "vue",
    "Svelte",
    "Astro",
    "TypeScript",
    "TSX",
    "JavaScript",
    "Less",
    "SCSS",
    "Stylus",
  ],
  json: ["JSON", "JSON with Comments", "JSON5", "JSONLD", "Jupyter Notebook", "OASv2-json", "OASv3-json"],
  css: ["css", "PostCSS"],
  rust: ["rust", "RON"],
  ml: [
    "mllike",
    "haskell",
    "elm",
    "haskell-literate",
    "Agda",
    "Idris",
    "Lean",
    "Lean 4",
    "PureScript",
    "ATS",
    "Rocq Prover",
    "F*",
  ],
  lisp: [
    "commonlisp",
    "clojure",
    "scheme",
    "lisp",
    "Fennel",
    "Hy",
    "ZIL",
    "Shen",
    "Pact",
    "PDDL",
    "SMT",
    "Tree-sitter Query",
  ],
  python: [
    "python",
    "nim",
    "yaml",
    "coffeescript",
    "sass",
    "haml",
    "pug",
    "slim",
    "livescript",
    "gherkin",
    "GDScript",
    "Boo",
    "Genie",
    "robot",
    "Meson",
    "Just",
  ],
  hash: [
    "r",
    "perl",
    "toml",
    "dockerfile",
    "puppet",
    "nginx",
    "properties",
    "awk",
    "Awk",
    "tcl",
    "nix",
    "HCL",
    "Terraform Template",
    "Go Module",
    "gitignore",
    "apache_conf",
    "jq",
    "sed",
    "ini",
    "prisma",
  ],
  powershell: ["powershell"],
  ruby: ["ruby", "crystal", "elixir", "julia"],
  lua: ["lua", "MoonScript"],
  shell: ["shell"],
  fish: ["fish"],
  vim: ["Vim script"],
  make: ["cmake", "Meson"],
  basic: [
    "vb",
    "vbscript",
    "basic",
    "REALbasic",
    "Xojo",
    "Classic ASP",
    "PureBasic",
    "BlitzBasic",
    "BlitzMax",
    "AutoIt",
    "Brightscript",
    "BrighterScript",
  ],
  pascal: ["pascal", "Modula-2", "Modula-3", "Oberon", "Oxygene"],
  sql: ["sql", "TSQL", "HiveQL"],
  ada: ["ada", "vhdl", "eiffel"],
  verilog: ["verilog", "TL-Verilog"],
  fortran: ["fortran"],
  matlab: ["octave", "Scilab"],
  erlang: ["erlang", "prolog", "logtalk"],
  tex: ["stex", "Sweave"],
  markup: ["xml", "htmlmixed", "htmlembedded", "html", "Web Ontology Language"],
  template: [
    "jinja2",
    "twig",
    "smarty",
    "liquid",
    "nunjucks",
    "handlebars",
    "Go Template",
    "ftl",
    "soy",
    "php_laravel_blade",
    "Antlers",
    "Mako",
  ],
  prose: [
    "gfm",
    "rst",
    "textile",
    "asciidoc",
    "mediawiki",
    "rdoc",
    "Text",
    "Org",
    "Muse",
    "Creole",
    "Git Commit",
    "mbox",
    "Pod",
    "Pod 6",
    "csv",
    "tsv",
    "Vim Help File",
    "diff",
    "troff",
  ],
  assembly: ["assembly_x86", "LLVM", "nasal"],
};

// Ids of VS Code and Vim that linguist does not know.
const IDS = {
  "Visual Basic .NET": ["vb"],
  "C#": ["cs"],
  "Objective-C++": ["objcpp", "objective-cpp"],
  PowerShell: ["ps1"],
  "HTML+ERB": ["eruby"],
  JavaScript: ["javascriptreact"],
  SystemVerilog: ["verilog_systemverilog"],
  "HTML+EEX": ["eelixir"],
  Jinja: ["jinja2"],
  Fortran: ["f90"],
  Text: ["plaintext"],
  "Git Commit": ["gitcommit", "git-rebase"],
  INI: ["cfg"],
  SQL: ["mysql", "sqlite"],
  PLpgSQL: ["pgsql"],
  RMarkdown: ["rmd"],
  Tcl: ["expect"],
  Tcsh: ["csh"],
  HCL: ["tf"],
  Groovy: ["jenkinsfile"],
  BibTeX: ["bib"],
  YAML: ["dockercompose", "docker-compose"],
  Cuda: ["cuda-cpp"],
  "Common Lisp": ["commonlisp"],
  Pug: ["jade"],
  Shell: ["shellscript"],
  Markdown: ["prompt", "instructions"],
  "Java Properties": ["properties"],
  WebAssembly: ["wat"],
  TeX: ["plaintex"],
  Batchfile: ["dosbatch"],
};

// A file ending or id that several languages claim is of the first of these, else of the language that names it first.
const COMMON = [
  "C",
  "C++",
  "C#",
  "CSS",
  "Go",
  "HTML",
  "Java",
  "JavaScript",
  "JSON",
  "Kotlin",
  "Lua",
  "Markdown",
  "Objective-C",
  "Perl",
  "PHP",
  "Python",
  "R",
  "Ruby",
  "Rust",
  "Scala",
  "Shell",
  "SQL",
  "Swift",
  "Text",
  "TypeScript",
  "TSX",
  "YAML",
  "XML",
  "Verilog",
  "Visual Basic .NET",
  "TeX",
  "Fortran",
  "Common Lisp",
  "Assembly",
  "INI",
  "HCL",
  "Pascal",
  "Prolog",
];

// As common in languages of different syntaxes: the rules infer the syntax from the text.
const AMBIGUOUS = new Set([".m", ".inc", ".cgi", ".fcgi", ".cls", ".t"]);

const byMode = new Map(Object.entries(SYNTAXES).flatMap(([syntax, modes]) => modes.map((mode) => [mode, syntax])));
const syntaxOf = (each) => byMode.get(each.name) ?? byMode.get(each.codemirrorMode) ?? byMode.get(each.aceMode) ?? "";
const ranked = [...COMMON.map((name) => languages.find((each) => each.name === name)), ...languages];
const claims = (list) => {
  const owners = new Map();
  for (const isFirst of [true, false]) {
    for (const each of ranked) {
      for (const [at, key] of (list(each) ?? []).entries()) {
        const mayClaim = !isFirst || at === 0 || COMMON.includes(each.name);
        if (mayClaim && !owners.has(key)) owners.set(key, each);
      }
    }
  }
  return (each) =>
    [...owners]
      .filter(([, owner]) => owner === each)
      .map(([key]) => key)
      .sort();
};
const dashed = (name) => name.toLowerCase().replaceAll(" ", "-");
const ids = claims((each) => [
  dashed(each.name),
  ...(IDS[each.name] ?? []),
  ...(each.aliases ?? []).map((alias) => alias.toLowerCase()),
]);
const endings = claims((each) =>
  each.extensions?.map((ending) => ending.toLowerCase()).filter((ending) => !AMBIGUOUS.has(ending)),
);
const names = claims((each) => each.filenames?.map((name) => name.toLowerCase()));
const interpreters = claims((each) => each.interpreters);

for (const each of languages.filter(syntaxOf).toSorted((one, other) => (one.name < other.name ? -1 : 1))) {
  const columns = [ids, endings, names, interpreters].map((list) =>
    list(each)
      .filter((key) => !/\s/.test(key))
      .join(" "),
  );
  console.log([each.name, syntaxOf(each), ...columns].join("\t").trimEnd());
}
