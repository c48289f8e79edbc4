/** Between VS Code and the completer: its events go in, offers come out as inline completions. */
import * as vscode from "vscode";
import type { Completer, Offer } from "../completer";
import type { SurvivalFeedback } from "../feedback";
import { acceptedPart, changeOf } from "../policy/changes";
import { reasonNotToSend } from "../policy/exclude";
import type { Change, Extent, Text } from "../policy/messages";
import type { SnippetRing } from "../policy/snippets";
import type { Settings } from "./settings";
import { editsOf, infoOf, insertedBefore, replacementsOf, textAt } from "./texts";

/** Runs when VS Code has inserted an offer. Its arguments are the request and the text. */
export const ACCEPTED_COMMAND = "completionServer.accepted";
/** A cursor that jumps so many lines has left a place. */
const JUMP_LINES = 32;

export class Provider implements vscode.InlineCompletionItemProvider {
  /** A change of the document in front that the policy does not know yet: it lacks the cursor's new place. */
  #change?: { change: Change; extent?: Extent; inserted: string; shown?: Offer };
  #place?: { text: Text; line: number };
  /** What VS Code was given last; more of its request may have come since. */
  #offered?: Offer;
  /** The request whose whole acceptance was known by the change. Its command confirms that. */
  #acceptedWhole?: number;

  constructor(
    private readonly completer: Completer,
    private readonly survival: SurvivalFeedback,
    private readonly snippets: SnippetRing,
    private readonly settings: Settings,
    private readonly isApplyingEdit = () => false,
  ) {}

  /** Listen to documents and cursors, and provide completions for all languages. */
  register(): vscode.Disposable {
    for (const editor of vscode.window.visibleTextEditors) this.#remember(editor);
    return vscode.Disposable.from(
      vscode.languages.registerInlineCompletionItemProvider({ pattern: "**" }, this),
      vscode.commands.registerCommand(ACCEPTED_COMMAND, (request: number, text: string) =>
        this.#accepted(request, text),
      ),
      vscode.workspace.onDidChangeTextDocument((event) => this.#changed(event)),
      vscode.workspace.onDidCloseTextDocument((document) => this.#forget(document.uri.toString())),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor, selections }) => {
        const [selection] = selections;
        if (textEditor === vscode.window.activeTextEditor && selection)
          this.#sync(textEditor.document, selection.active);
      }),
      vscode.window.onDidChangeActiveTextEditor((editor) => {
        if (editor) this.#sync(editor.document, editor.selection.active);
        else this.completer.left();
      }),
    );
  }

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    if (!this.#sync(document, position)) return [];
    if (context.triggerKind === vscode.InlineCompletionTriggerKind.Invoke) {
      this.completer.explicit(textAt(document, position));
    }
    const abort = new AbortController();
    token.onCancellationRequested(() => abort.abort());
    const offer = await this.completer.offer(abort.signal);
    if (!offer || token.isCancellationRequested) return [];
    const range = new vscode.Range(position, position.translate(0, offer.replaced));
    this.#offered = offer;
    if (isDrawn(document, range, offer.text, context)) this.completer.drawn(offer.request);
    return [
      new vscode.InlineCompletionItem(offer.text, range, {
        title: "Accepted",
        command: ACCEPTED_COMMAND,
        arguments: [offer.request, offer.text],
      }),
    ];
  }

  /** The user pressed Esc. */
  dismiss(): void {
    this.completer.rejected();
  }

  /** Why the document in front gets no completions. */
  get whyOff(): string | undefined {
    const document = vscode.window.activeTextEditor?.document;
    return document && reasonNotToSend(infoOf(document), this.settings.rules);
  }

  #changed(event: vscode.TextDocumentChangeEvent): void {
    this.survival.edited(event.document.uri.toString(), editsOf(event));
    const isInFront = event.document === vscode.window.activeTextEditor?.document;
    if (!isInFront || event.contentChanges.length === 0) return;
    const replacements = replacementsOf(event);
    const change = this.isApplyingEdit() ? "other" : changeOf(replacements, event.reason !== undefined);
    const { shown } = this.completer;
    const extent = change === "undone" ? undefined : acceptedPart(shown?.text, replacements);
    this.#change = { change, extent, inserted: replacements[0]?.inserted ?? "", shown };
  }

  /** Tell the completer the present place, and how it came about. Returns whether the document may be sent. */
  #sync(document: vscode.TextDocument, position: vscode.Position): boolean {
    if (reasonNotToSend(infoOf(document), this.settings.rules) !== undefined) {
      this.#forget(document.uri.toString());
      this.completer.left();
      return false;
    }
    const text = textAt(document, position);
    this.#leave(text, position.line);
    const made = this.#change;
    this.#change = undefined;
    if (!made) this.completer.moved(text);
    else if (made.extent && made.shown) {
      const { request } = made.shown;
      const isOffer = this.#offered?.request === request && this.#offered.text === made.inserted;
      if (made.extent === "whole" || isOffer) this.#acceptedWhole = request;
      this.completer.accepted(request, text, made.extent, made.inserted);
      this.#follow(request, document, position, made.inserted);
    } else this.completer.changed(text, made.change);
    return true;
  }

  #accepted(request: number, inserted: string): void {
    const editor = vscode.window.activeTextEditor;
    const isKnown = this.#acceptedWhole === request;
    this.#acceptedWhole = undefined;
    if (!editor || isKnown) return;
    const { document, selection } = editor;
    this.#change = undefined;
    this.completer.accepted(request, textAt(document, selection.active), "whole", inserted);
    this.#follow(request, document, selection.active, inserted);
  }

  /** See how much of an accepted text survives. */
  #follow(request: number, document: vscode.TextDocument, position: vscode.Position, text: string): void {
    const found = insertedBefore(document, position, text);
    if (found) this.survival.accepted(request, document.uri.toString(), found.offset, found.inserted);
  }

  /** Remember the place that the cursor left, if it did, as a snippet for other files. */
  #leave(text: Text, line: number): void {
    const place = this.#place;
    this.#place = { text, line };
    if (place && (place.text.uri !== text.uri || Math.abs(place.line - line) >= JUMP_LINES))
      this.snippets.leave(place.text);
  }

  /** Keep no text of a document that was closed or may not be sent. */
  #forget(uri: string): void {
    this.snippets.close(uri);
    if (this.#place?.text.uri === uri) this.#place = undefined;
  }

  #remember({ document, selection }: vscode.TextEditor): void {
    if (reasonNotToSend(infoOf(document), this.settings.rules) === undefined) {
      this.snippets.leave(textAt(document, selection.active));
    }
  }
}

/** Whether VS Code draws a text: while its list of suggestions is open, it must continue the selected one. */
function isDrawn(
  document: vscode.TextDocument,
  range: vscode.Range,
  text: string,
  { selectedCompletionInfo: selected }: vscode.InlineCompletionContext,
): boolean {
  if (!selected) return true;
  const typed = document.getText(new vscode.Range(selected.range.start, range.start));
  return (typed + text).startsWith(selected.text);
}
