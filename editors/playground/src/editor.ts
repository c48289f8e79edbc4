/** The editor: CodeMirror, whose changes go to the completer as the policy's events. */
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { go } from "@codemirror/lang-go";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, type ViewUpdate } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { changeOf, type Replacement } from "../../vscode/src/policy/changes";
import type { Text } from "../../vscode/src/policy/messages";
import type { Completer } from "./completer";
import { accepting, ghostText, setOffer } from "./ghost";
import type { Sample } from "./samples";

const LANGUAGES: Record<string, () => Extension> = {
  go: () => [go(), indentUnit.of("\t")],
  python: () => [python(), indentUnit.of("    ")],
  typescript: () => [javascript({ typescript: true }), indentUnit.of("  ")],
};

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.operatorKeyword], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.comment, tags.docString], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--code-function)" },
  { tag: [tags.typeName, tags.className, tags.namespace], color: "var(--code-type)" },
]);

export class Editor {
  readonly view: EditorView;
  #sample: Sample;
  /** The texts of the samples that were left, by their names. */
  readonly #states = new Map<string, EditorState>();

  constructor(
    parent: HTMLElement,
    sample: Sample,
    private readonly completer: Completer,
    private readonly nonce: string,
  ) {
    this.#sample = sample;
    this.view = new EditorView({ parent, state: this.#stateOf(sample) });
  }

  /** Open another sample, as it was left. */
  open(sample: Sample): void {
    this.completer.left();
    this.#states.set(this.#sample.file, this.view.state);
    this.#sample = sample;
    this.view.setState(this.#states.get(sample.file) ?? this.#stateOf(sample));
    if (this.view.hasFocus) this.completer.moved(this.#text(this.view.state));
  }

  #stateOf(sample: Sample): EditorState {
    const at = sample.text.indexOf("|");
    return EditorState.create({
      doc: sample.text.replace("|", ""),
      selection: { anchor: at },
      extensions: [
        EditorView.cspNonce.of(this.nonce),
        EditorView.contentAttributes.of({ "aria-label": "Code", spellcheck: "false" }),
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        syntaxHighlighting(COLOURS),
        LANGUAGES[sample.language]?.() ?? [],
        ghostText(
          () => this.completer.rejected(),
          () => this.completer.explicit(this.#text(this.view.state)),
        ),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.updateListener.of((update) => this.#updated(update)),
      ],
    });
  }

  /** Tell the completer what happened. */
  #updated(update: ViewUpdate): void {
    const { state } = update;
    const { ranges, main } = state.selection;
    if (update.focusChanged && !this.view.hasFocus) this.completer.left();
    else if (ranges.length > 1 || !main.empty) this.completer.left();
    else if (update.docChanged) this.#changed(update);
    else if (update.selectionSet || update.focusChanged) this.completer.moved(this.#text(state));
  }

  #changed({ transactions, state }: ViewUpdate): void {
    const text = this.#text(state);
    for (const transaction of transactions) {
      const accepted = transaction.annotation(accepting);
      if (accepted) return this.completer.accepted(accepted.request, text, accepted.extent, accepted.inserted);
    }
    const replacements: Replacement[] = [];
    for (const { changes } of transactions) {
      changes.iterChanges((from, to, _fromB, _toB, inserted) => {
        replacements.push({ numDeleted: to - from, inserted: inserted.toString() });
      });
    }
    const isUndo = transactions.some((each) => each.isUserEvent("undo") || each.isUserEvent("redo"));
    this.completer.changed(text, changeOf(replacements, isUndo));
  }

  #text({ doc, selection }: EditorState): Text {
    const at = selection.main.head;
    return { uri: `playground:///${this.#sample.file}`, before: doc.sliceString(0, at), after: doc.sliceString(at) };
  }

  /** Show an offer at the cursor, or nothing. */
  show(offer: { request: number; text: string; replaced: number } | undefined): void {
    this.view.dispatch({ effects: setOffer.of(offer) });
  }
}
