/** Between VS Code and the next edits: its events go in, edits come out as decorations that Tab applies. */
import * as vscode from "vscode";
import type { SurvivalFeedback } from "../feedback";
import type { NextEdits, ShownEdit } from "../nextEdits";
import { changeOf } from "../policy/changes";
import { reasonNotToSend } from "../policy/exclude";
import { type LineEdit, linesOf } from "../policy/lineEdits";
import type { RecentEdits } from "../policy/recentEdits";
import type { EditDecorations } from "./editDecorations";
import type { Settings } from "./settings";
import { editsOf, infoOf, replacementsOf, textAt, withLf } from "./texts";

const SHOWN_KEY = "completionServer.nextEditShown";

export class NextEditView {
  #shown?: ShownEdit;
  /** What was last taken of a document in front. */
  #seen?: { document: vscode.TextDocument; version: number };
  /** Whether the change that is made now is a shown edit. */
  isApplying = false;

  constructor(
    private readonly edits: NextEdits,
    private readonly recent: RecentEdits,
    private readonly survival: SurvivalFeedback,
    private readonly decorations: EditDecorations,
    private readonly settings: Settings,
  ) {}

  /** Listen to documents and cursors. */
  register(): vscode.Disposable {
    const editor = vscode.window.activeTextEditor;
    if (editor) this.#moved(editor);
    return vscode.Disposable.from(
      vscode.workspace.onDidChangeTextDocument((event) => this.#changed(event)),
      vscode.workspace.onDidCloseTextDocument((document) => this.#forget(document)),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => {
        if (textEditor === vscode.window.activeTextEditor) this.#moved(textEditor);
      }),
      vscode.window.onDidChangeActiveTextEditor((active) => (active ? this.#moved(active) : this.edits.left())),
      { dispose: () => this.show(undefined) },
    );
  }

  /** Draw an edit of the document in front, or nothing. */
  show(shown: ShownEdit | undefined): void {
    const editor = vscode.window.activeTextEditor;
    this.#shown = shown && editor && isOf(shown, editor.document) ? shown : undefined;
    void vscode.commands.executeCommand("setContext", SHOWN_KEY, this.#shown !== undefined);
    if (!this.#shown || !editor) return this.decorations.hide();
    this.decorations.show(editor, this.#shown.edit);
    this.edits.drawn(this.#shown.request);
  }

  /** The user pressed Tab. */
  async accept(): Promise<void> {
    const shown = this.#shown;
    const editor = vscode.window.activeTextEditor;
    if (!shown || !editor || !isOf(shown, editor.document)) return;
    const { request, uri, edit } = shown;
    this.isApplying = true;
    try {
      if (!(await editor.edit((builder) => builder.replace(rangeOf(edit), edit.text)))) return;
    } finally {
      this.isApplying = false;
    }
    const { document } = editor;
    const end = endOf(document, edit);
    editor.selection = new vscode.Selection(end, end);
    editor.revealRange(editor.selection);
    if (edit.text) {
      const offset = document.offsetAt(new vscode.Position(edit.first, 0));
      const last = document.offsetAt(end);
      this.survival.accepted(request, uri, offset, document.getText().slice(offset, last));
    }
    this.edits.accepted(request, textAt(document, end), document.version);
  }

  /** The user pressed Esc. */
  reject(): void {
    this.edits.rejected();
  }

  #changed(event: vscode.TextDocumentChangeEvent): void {
    const { document, reason, contentChanges } = event;
    this.survival.edited(document.uri.toString(), editsOf(event));
    const editor = vscode.window.activeTextEditor;
    if (contentChanges.length === 0) return;
    if (document !== editor?.document) return this.#forget(document); // changed by git or a formatter, not by the user
    if (!this.#follow(document)) return;
    const change = this.isApplying ? "other" : changeOf(replacementsOf(event), reason !== undefined);
    this.edits.changed(textAt(document, editor.selection.active), document.version, change);
  }

  #moved({ document, selection }: vscode.TextEditor): void {
    if (this.#follow(document)) this.edits.moved(textAt(document, selection.active), document.version);
    else this.edits.left();
  }

  /** Take what was changed in a document since it was last seen, if it may be sent; return whether it may. */
  #follow(document: vscode.TextDocument): boolean {
    const isAllowed = reasonNotToSend(infoOf(document), this.settings.rules) === undefined;
    if (!isAllowed) this.#forget(document);
    else if (this.#seen?.document !== document || this.#seen.version !== document.version) {
      this.recent.update(document.uri.toString(), withLf(document.getText()), performance.now());
      this.#seen = { document, version: document.version };
    }
    return isAllowed;
  }

  /** Forget a document that was closed, may not be sent, or whose next text is not the user's change. */
  #forget(document: vscode.TextDocument): void {
    this.recent.forget(document.uri.toString());
    if (this.#seen?.document === document) this.#seen = undefined;
  }
}

const isOf = ({ uri, version }: ShownEdit, document: vscode.TextDocument) =>
  uri === document.uri.toString() && version === document.version;

const rangeOf = ({ first, numLines }: LineEdit) => new vscode.Range(first, 0, first + numLines, 0);

/** The end of the last new line, or the place of deleted ones. */
function endOf(document: vscode.TextDocument, { first, text }: LineEdit): vscode.Position {
  const numNew = linesOf(text).length;
  if (numNew === 0) return document.validatePosition(new vscode.Position(first, 0));
  return document.lineAt(first + numNew - 1).range.end;
}
