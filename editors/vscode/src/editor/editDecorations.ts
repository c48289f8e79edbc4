/** Draws an edit: its old lines struck out, the new ones beside them. The stable API has nothing for inline edits. */
import * as vscode from "vscode";
import type { LineEdit } from "../policy/lineEdits";
import { diffOf, previewOf } from "../policy/preview";

const SPACE = "0 0 0 2em";

export class EditDecorations implements vscode.Disposable {
  readonly #removed = vscode.window.createTextEditorDecorationType({
    backgroundColor: new vscode.ThemeColor("diffEditor.removedTextBackground"),
    textDecoration: "line-through",
  });
  readonly #added = vscode.window.createTextEditorDecorationType({});
  #editor?: vscode.TextEditor;

  show(editor: vscode.TextEditor, edit: LineEdit): void {
    this.hide();
    this.#editor = editor;
    const { document } = editor;
    const old = Array.from({ length: edit.numLines }, (_, index) => document.lineAt(edit.first + index).text);
    const { removed, added } = previewOf(old, edit);
    const hoverMessage = new vscode.MarkdownString().appendCodeblock(diffOf(old, edit), "diff");
    hoverMessage.appendMarkdown("Tab accepts, Esc dismisses.");
    editor.setDecorations(
      this.#removed,
      removed.map((line) => ({ range: contentOf(document.lineAt(line)), hoverMessage })),
    );
    editor.setDecorations(
      this.#added,
      added.map(({ line, text, isBefore }) => {
        const { start, end } = document.lineAt(line).range;
        const attachment = { contentText: text, ...STYLE, margin: isBefore ? undefined : SPACE };
        const renderOptions = isBefore ? { before: attachment } : { after: attachment };
        const at = isBefore ? start : end;
        return { range: new vscode.Range(at, at), renderOptions, hoverMessage };
      }),
    );
  }

  hide(): void {
    this.#editor?.setDecorations(this.#removed, []);
    this.#editor?.setDecorations(this.#added, []);
    this.#editor = undefined;
  }

  dispose(): void {
    this.#removed.dispose();
    this.#added.dispose();
  }
}

const STYLE = {
  color: new vscode.ThemeColor("editorGhostText.foreground"),
  backgroundColor: new vscode.ThemeColor("diffEditor.insertedTextBackground"),
};

/** A line without its indentation. */
const contentOf = ({ range, firstNonWhitespaceCharacterIndex: at }: vscode.TextLine) =>
  new vscode.Range(range.start.translate(0, at), range.end);
