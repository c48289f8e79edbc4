/** The provider with the events of VS Code in VS Code's order, and a completer on a session of the test's own. */
import assert from "node:assert/strict";
import Module from "node:module";
import { test } from "node:test";
import { End, FeedbackKind, FinishReason, type ReportFeedbackRequest, Trigger } from "completion-server-stubs";
import type { Answer, Question } from "../src/client/session";
import { Completer } from "../src/completer";
import { SurvivalFeedback } from "../src/feedback";
import type { Text } from "../src/policy/messages";
import { SnippetRing } from "../src/policy/snippets";

const handlers: Record<string, (event: any, ...more: any[]) => any> = {};
const none = () => ({ dispose: () => {} });
const keep = (name: string) => (handler: any) => {
  handlers[name] = handler;
  return none();
};
const vscode = {
  Disposable: { from: none },
  EndOfLine: { LF: 1, CRLF: 2 },
  InlineCompletionTriggerKind: { Invoke: 0, Automatic: 1 },
  Range: class {},
  InlineCompletionItem: class {
    constructor(readonly insertText: string) {}
  },
  window: {
    visibleTextEditors: [],
    activeTextEditor: undefined as any,
    onDidChangeTextEditorSelection: keep("selection"),
    onDidChangeActiveTextEditor: keep("active"),
  },
  workspace: {
    notebookDocuments: [] as any[],
    workspaceFolders: undefined,
    getWorkspaceFolder: () => undefined,
    fs: {
      isWritableFileSystem: (scheme: string) =>
        new Map([
          ["memfs", true],
          ["git", false],
        ]).get(scheme),
    },
    onDidChangeTextDocument: keep("change"),
    onDidCloseTextDocument: keep("close"),
  },
  languages: { registerInlineCompletionItemProvider: none },
  commands: { registerCommand: (_: string, handler: any) => keep("command")(handler) },
};
const loader = Module as any;
const load = loader._load;
loader._load = (name: string, ...more: unknown[]) => (name === "vscode" ? vscode : load(name, ...more));
const { earlierCells } = require("../src/editor/texts") as typeof import("../src/editor/texts");
const { Provider } = require("../src/editor/provider") as typeof import("../src/editor/provider");

/** A document of one line, with the cursor at its end, in front. */
class FakeEditor {
  text = "";
  readonly document;

  constructor(path: string, scheme = "file", languageId = "python") {
    this.document = {
      uri: { scheme, path, toString: () => `${scheme}://${path}` },
      languageId,
      eol: vscode.EndOfLine.LF,
      getText: () => this.text,
      offsetAt: ({ character }: { character: number }) => character,
    };
  }

  get selection() {
    const character = this.text.length;
    return {
      active: { line: 0, character, translate: (_: number, by: number) => ({ line: 0, character: character + by }) },
    };
  }

  select(): void {
    handlers.selection?.({ textEditor: this, selections: [this.selection] });
  }

  /** Insert a text at the end. The cursor moves after the change. */
  insert(text: string): void {
    const contentChanges = [{ rangeOffset: this.text.length, rangeLength: 0, text }];
    this.text += text;
    handlers.change?.({ document: this.document, contentChanges });
    this.select();
  }
}

function start(holds = false) {
  const questions: Question[] = [];
  const reports: Partial<ReportFeedbackRequest>[] = [];
  const held = { onText: (_: string) => {}, end: () => {} };
  const session = {
    async complete(question: Question, _ms: number, _signal?: AbortSignal, onText = (_: string) => {}) {
      questions.push(question);
      held.onText = onText;
      if (holds) await new Promise<void>((resolve) => (held.end = resolve));
      if (!holds) onText("total");
      const end = End.fromPartial({ finishReason: FinishReason.STOP });
      return { sequence: questions.length, text: "total", totalMs: 1, end } as Answer;
    },
    report: (feedback: Partial<ReportFeedbackRequest>) => void reports.push(feedback),
  };
  const describe = ({ uri }: Text) => ({ earlier: earlierCells(uri) });
  const hooks = { session: () => session, describe, onAnswer: () => {} };
  const completer = new Completer(hooks, { followsRhythm: false, delayMinMs: 0 }, "auto");
  const survival = new SurvivalFeedback({ textOf: () => undefined, sequenceOf: (each) => each, report: () => {} });
  const snippets = new SnippetRing();
  const rules = { exclude: [], languages: {}, outsideWorkspace: true };
  const provider = new Provider(completer, survival, snippets, { rules } as any);
  provider.register();
  const dispose = () => {
    completer.dispose();
    survival.dispose();
  };
  return { questions, reports, completer, provider, held, snippets, dispose };
}

test("after Tab, whose change comes before its command, the next text is asked for as PREFETCH, once", async () => {
  const { questions, reports, completer, dispose } = start();
  const editor = new FakeEditor("/w/a.py");
  vscode.window.activeTextEditor = editor;
  editor.insert("x");
  const offer = await completer.offer(new AbortController().signal);
  editor.insert("total");
  handlers.command?.(offer?.request, "total");
  dispose();
  assert.deepEqual(
    questions.map(({ trigger }) => trigger),
    [Trigger.AUTOMATIC, Trigger.PREFETCH],
  );
  assert.equal(reports.length, 1);
});

test("Tab on the lines of a block that were offered is one acceptance, though more have come since", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { reports, provider, held, dispose } = start(true);
  const editor = new FakeEditor("/w/a.py");
  vscode.window.activeTextEditor = editor;
  editor.insert("x");
  held.onText("a\n    b");
  context.mock.timers.tick(1_000);
  const token = { isCancellationRequested: false, onCancellationRequested: () => {} };
  const { document, selection } = editor;
  const items = await provider.provideInlineCompletionItems(
    document as any,
    selection.active as any,
    { triggerKind: vscode.InlineCompletionTriggerKind.Automatic, selectedCompletionInfo: undefined } as any,
    token as any,
  );
  assert.deepEqual(
    items.map((each) => each.insertText),
    ["a\n    b"],
  );
  held.onText("\n    c");
  editor.insert("a\n    b");
  handlers.command?.(1, "a\n    b");
  held.end();
  await new Promise(setImmediate);
  const accepted = reports.filter(({ kind }) => kind !== FeedbackKind.SHOWN);
  assert.deepEqual(
    accepted.map(({ kind }) => kind),
    [FeedbackKind.ACCEPTED_LINE],
  );
  dispose();
});

test("the text of a document that was closed is no snippet", () => {
  const { snippets, dispose } = start();
  const [closed, other] = [new FakeEditor("/w/a.py"), new FakeEditor("/w/b.py")];
  closed.text = other.text = "total = price * amount";
  for (const editor of [closed, other]) {
    vscode.window.activeTextEditor = editor;
    editor.select();
    if (editor === closed) handlers.close?.(closed.document);
  }
  dispose();
  assert.deepEqual(snippets.choose({ uri: "c.py", before: "total = price", after: "" }), []);
});

test("files of any file system that can be written are completed", () => {
  const schemes = ["file", "untitled", "vscode-remote", "vscode-vfs", "memfs", "git", "output"];
  const asked = schemes.filter((scheme) => {
    const { questions, dispose } = start();
    const editor = new FakeEditor("/w/a.py", scheme);
    vscode.window.activeTextEditor = editor;
    editor.insert("x");
    dispose();
    return questions.length > 0;
  });
  assert.deepEqual(asked, ["file", "untitled", "vscode-remote", "vscode-vfs", "memfs"]);
});

test("a cell of a notebook is asked for with the code of the earlier cells", () => {
  const cells = ["/w/a.ipynb#1", "/w/a.ipynb#2", "/w/a.ipynb#3", "/w/a.ipynb#4"].map(
    (path, at) => new FakeEditor(path, "vscode-notebook-cell", at === 1 ? "markdown" : "python"),
  );
  cells.forEach((cell, at) => {
    cell.text = ["import os\r\n", "Notes", "y = 1", "later"][at] ?? "";
  });
  const notebook = { uri: { toString: () => "file:///w/a.ipynb", path: "/w/a.ipynb" }, getCells: () => cells };
  vscode.workspace.notebookDocuments = [notebook];
  try {
    const { questions, dispose } = start();
    const [, , cell] = cells;
    vscode.window.activeTextEditor = cell;
    cell?.insert("x");
    dispose();
    assert.deepEqual(
      questions.map(({ prefix }) => prefix),
      ["import os\n\ny = 1x"],
    );
    assert.equal(earlierCells("vscode-notebook-cell:///w/a.ipynb#4"), "import os\n\ny = 1x\n\n");
    assert.equal(earlierCells("vscode-notebook-cell:///w/a.ipynb#1"), "");
    assert.equal(earlierCells("file:///w/other.py"), "");
  } finally {
    vscode.workspace.notebookDocuments = [];
  }
});
