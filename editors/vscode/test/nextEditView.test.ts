/** The view of next edits with the events of VS Code in VS Code's order: what is drawn, applied and asked. */
import assert from "node:assert/strict";
import Module from "node:module";
import { afterEach, beforeEach, type TestContext, test } from "node:test";
import { type Edit, End, FeedbackKind, FinishReason, type ReportFeedbackRequest } from "completion-server-stubs";
import type { Answer, Question } from "../src/client/session";
import { linesOf } from "../src/policy/lineEdits";
import { until } from "./support";

class Position {
  constructor(
    readonly line: number,
    readonly character: number,
  ) {}
  translate(lines: number, characters: number) {
    return new Position(this.line + lines, this.character + characters);
  }
}
class Range {
  readonly start: Position;
  readonly end: Position;
  constructor(...at: any[]) {
    [this.start, this.end] = at.length === 2 ? at : [new Position(at[0], at[1]), new Position(at[2], at[3])];
  }
}
class Selection extends Range {
  get active() {
    return this.end;
  }
}
class MarkdownString {
  appendCodeblock() {
    return this;
  }
  appendMarkdown() {
    return this;
  }
}

const handlers: Record<string, (event: any) => any> = {};
const context: Record<string, unknown> = {};
const none = () => ({ dispose: () => {} });
const keep = (name: string) => (handler: any) => {
  handlers[name] = handler;
  return none();
};
const vscode = {
  Position,
  Range,
  Selection,
  MarkdownString,
  ThemeColor: class {},
  Disposable: {
    from: (...parts: { dispose: () => void }[]) => ({
      dispose: () => {
        for (const each of parts) each.dispose();
      },
    }),
  },
  EndOfLine: { LF: 1, CRLF: 2 },
  window: {
    activeTextEditor: undefined as any,
    createTextEditorDecorationType: (options: object) => ({
      isRemoved: "textDecoration" in options,
      dispose: () => {},
    }),
    onDidChangeTextEditorSelection: keep("selection"),
    onDidChangeActiveTextEditor: keep("active"),
  },
  workspace: {
    notebookDocuments: [],
    workspaceFolders: undefined,
    getWorkspaceFolder: () => undefined,
    fs: {
      isWritableFileSystem: (scheme: string) =>
        new Map([
          ["memfs", true],
          ["git", false],
        ]).get(scheme),
    },
    textDocuments: [],
    onDidChangeTextDocument: keep("change"),
    onDidCloseTextDocument: keep("close"),
  },
  commands: { executeCommand: (_: string, key: string, value: unknown) => Object.assign(context, { [key]: value }) },
};
const loader = Module as any;
const load = loader._load;
loader._load = (name: string, ...more: unknown[]) => (name === "vscode" ? vscode : load(name, ...more));
const { startNextEdits } = require("../src/editor/startNextEdits") as typeof import("../src/editor/startNextEdits");

const SHOWN_KEY = "completionServer.nextEditShown";

/** A document in front. */
class FakeEditor {
  text = "";
  version = 1;
  selection = new Selection(0, 0, 0, 0);
  removed: any[] = [];
  added: any[] = [];
  readonly document: any;

  constructor(path: string) {
    const editor = this;
    this.document = {
      uri: { scheme: "file", path, toString: () => `file://${path}` },
      languageId: "python",
      get version() {
        return editor.version;
      },
      getText: () => this.text,
      offsetAt: (at: Position) => this.offsetAt(at),
      lineAt: (line: number) => this.lineAt(line),
      validatePosition: (at: Position) => at,
    };
  }

  offsetAt({ line, character }: Position): number {
    const lines = linesOf(this.text);
    return lines.slice(0, line).join("").length + (line < lines.length ? character : 0);
  }

  lineAt(line: number) {
    const text = (linesOf(this.text)[line] ?? "").replace("\n", "");
    return {
      text,
      range: new Range(line, 0, line, text.length),
      firstNonWhitespaceCharacterIndex: text.search(/\S|$/),
    };
  }

  setDecorations(type: { isRemoved: boolean }, options: any[]): void {
    if (type.isRemoved) this.removed = options.map(({ range }) => range.start.line);
    else this.added = options.map(({ range, renderOptions }) => [range.start.line, renderOptions.after?.contentText]);
  }

  replace(range: Range, text: string): void {
    const [start, end] = [this.offsetAt(range.start), this.offsetAt(range.end)];
    this.text = this.text.slice(0, start) + text + this.text.slice(end);
    this.version += 1;
    const contentChanges = [{ rangeOffset: start, rangeLength: end - start, text }];
    handlers.change?.({ document: this.document, contentChanges });
  }

  /** Type in the first line. The cursor moves after the change. */
  type(text: string): void {
    const at = this.selection.active;
    this.replace(new Range(at, at), text);
    const after = at.translate(0, text.length);
    this.selection = new Selection(after, after);
    handlers.selection?.({ textEditor: this });
  }

  async edit(make: (builder: { replace: (range: Range, text: string) => void }) => void): Promise<boolean> {
    make({ replace: (range, text) => this.replace(range, text) });
    return true;
  }

  revealRange(): void {}
}

const questions: Question[] = [];
const reports: Partial<ReportFeedbackRequest>[] = [];
/** The next answer's edit. */
let edit: Omit<Edit, "documentVersion"> | undefined;

const session = {
  async complete(question: Question) {
    questions.push(question);
    const documentVersion = question.nextEdit!.documentVersion;
    const end = End.fromPartial({ finishReason: FinishReason.STOP, edit: edit && { ...edit, documentVersion } });
    return { sequence: questions.length, text: "", totalMs: 1, end } as Answer;
  },
  report: (feedback: Partial<ReportFeedbackRequest>) => void reports.push(feedback),
};

let running: ReturnType<typeof startNextEdits>;
let editor: FakeEditor;

beforeEach(() => {
  questions.length = reports.length = 0;
  edit = { firstLine: 1, lineCount: 1, text: "  two = x\n  three = x\n" };
  editor = new FakeEditor("/w/a.py");
  editor.text = "\n  two = y\nend\n";
  vscode.window.activeTextEditor = editor;
  const rules = { exclude: ["*.sql"], languages: {}, outsideWorkspace: true };
  const describe = () => ({ languageId: "python", snippets: [] });
  running = startNextEdits({ rules } as any, { session: () => session as any, describe, onAnswer: () => {} });
  running.edits.back();
});
afterEach(() => {
  running.all.dispose();
});

async function show(): Promise<void> {
  editor.type("x");
  await until("the edit", () => context[SHOWN_KEY] === true);
}

/** Let time pass only where the test says so. */
function withTime({ mock }: TestContext): (ms: number) => Promise<void> {
  let nowMs = performance.now();
  mock.method(performance, "now", () => nowMs);
  mock.timers.enable({ apis: ["setTimeout"] });
  return async (ms) => {
    nowMs += ms;
    mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
}

test("an edit is drawn in a pause, and Tab applies it and asks for the next one", async () => {
  await show();
  assert.deepEqual([editor.removed, editor.added], [[1], [[1, "two = x ⏎   three = x"]]]);
  const [{ nextEdit }] = questions as [Question];
  assert.deepEqual(nextEdit?.recentEdits, [
    { documentUri: "file:///w/a.py", diff: "@@ -1,3 +1,3 @@\n-\n+x\n   two = y\n end\n" },
  ]);
  edit = undefined;
  await running.view.accept();
  assert.equal(editor.text, "x\n  two = x\n  three = x\nend\n");
  assert.deepEqual({ ...editor.selection.active }, { line: 2, character: "  three = x".length });
  assert.deepEqual([context[SHOWN_KEY], editor.removed, editor.added], [false, [], []]);
  assert.deepEqual(
    reports.map(({ sequence, kind, acceptedCharacters }) => [sequence, kind, acceptedCharacters]),
    [
      [1, FeedbackKind.SHOWN, 0],
      [1, FeedbackKind.ACCEPTED, "  two = x\n  three = x\n".length],
    ],
  );
  assert.equal(questions[1]?.nextEdit?.documentVersion, editor.version);
  assert.ok(questions[1]?.prefix?.endsWith("three = x"));
});

test("Esc hides an edit, and so does a change", async () => {
  await show();
  running.view.reject();
  assert.equal(context[SHOWN_KEY], false);
  assert.deepEqual(editor.removed, []);
  assert.equal(reports.at(-1)?.kind, FeedbackKind.REJECTED);
  edit = { firstLine: 2, lineCount: 1, text: "last\n" };
  editor.selection = new Selection(1, 0, 1, 0);
  editor.type("x");
  await until("another edit", () => context[SHOWN_KEY] === true);
  editor.type("y");
  assert.equal(context[SHOWN_KEY], false);
  await running.view.accept();
  assert.equal(editor.text, "x\nxy  two = y\nend\n", "a hidden edit was applied");
});

test("what another program changes in the background is not sent as the user's edit", async () => {
  const other = new FakeEditor("/w/b.py");
  vscode.window.activeTextEditor = other;
  handlers.active?.(other);
  editor.replace(new Range(2, 0, 2, 3), "formatted");
  vscode.window.activeTextEditor = editor;
  handlers.active?.(editor);
  await show();
  const [{ nextEdit }] = questions as [Question];
  assert.deepEqual(
    nextEdit?.recentEdits.map(({ diff }) => diff),
    ["@@ -1,3 +1,3 @@\n-\n+x\n   two = y\n formatted\n"],
  );
});

test("a move of the cursor reads the text of a known version once, for the policy", () => {
  let numReads = 0;
  editor.document.getText = () => {
    numReads += 1;
    return editor.text;
  };
  handlers.selection?.({ textEditor: editor });
  assert.equal(numReads, 1);
});

test("an edit is not drawn in another document", async () => {
  editor.type("x");
  const other = new FakeEditor("/w/b.py");
  vscode.window.activeTextEditor = other;
  handlers.active?.(other);
  await until("the question", () => questions.length > 0);
  await new Promise(setImmediate); // its edit is outside that document, which is empty
  assert.notEqual(context[SHOWN_KEY], true);
  assert.deepEqual(
    questions.map(({ documentUri }) => documentUri),
    ["file:///w/b.py"],
  );
});

test("nothing is asked in a document that may not be sent, and its edits are sent nowhere", async (t) => {
  const wait = withTime(t);

  const secret = new FakeEditor("/w/a.sql");
  vscode.window.activeTextEditor = secret;
  handlers.active?.(secret);
  secret.type("select");
  await wait(1_000);
  assert.equal(questions.length, 0);
  vscode.window.activeTextEditor = editor;
  handlers.active?.(editor);
  editor.type("x");
  await wait(1_000);
  assert.deepEqual(
    questions[0]?.nextEdit?.recentEdits.map(({ documentUri }) => documentUri),
    ["file:///w/a.py"],
  );
});
