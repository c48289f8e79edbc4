/** Ghost text in the editor: shows it at the cursor, and accepts it as a whole or by word. */
import { Annotation, type Extension, Prec, StateEffect, StateField, type TransactionSpec } from "@codemirror/state";
import { Decoration, EditorView, keymap, WidgetType } from "@codemirror/view";
import type { Extent } from "../../vscode/src/policy/messages";
import type { Offer } from "./completer";

/** Marks the change that accepts an offer. */
export const accepting = Annotation.define<{ request: number; extent: Extent; inserted: string }>();

export const setOffer = StateEffect.define<Offer | undefined>();

interface Ghost extends Offer {
  at: number;
}

class GhostWidget extends WidgetType {
  constructor(private readonly text: string) {
    super();
  }

  override eq(other: GhostWidget): boolean {
    return this.text === other.text;
  }

  override toDOM(): HTMLElement {
    const span = document.createElement("span");
    span.className = "ghost";
    span.setAttribute("aria-hidden", "true"); // the status line says it
    span.textContent = this.text;
    return span;
  }
}

/** A changed document or a moved cursor has no ghost text until it is set anew. */
const ghostField = StateField.define<Ghost | undefined>({
  create: () => undefined,
  update(ghost, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(setOffer)) {
        return effect.value && { ...effect.value, at: transaction.state.selection.main.head };
      }
    }
    return transaction.docChanged || transaction.selection ? undefined : ghost;
  },
  provide: (field) =>
    EditorView.decorations.from(field, (ghost) => {
      if (!ghost) return Decoration.none;
      const widget = Decoration.widget({ widget: new GhostWidget(ghost.text), side: 1 }).range(ghost.at);
      if (!ghost.replaced) return Decoration.set(widget);
      return Decoration.set([widget, Decoration.replace({}).range(ghost.at, ghost.at + ghost.replaced)]);
    }),
});

const WORD = /^\s*(?:[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]+|$)/u;

/** The change that accepts the first part of what is shown; undefined if nothing is shown. */
function acceptance(view: EditorView, extent: Extent): TransactionSpec | undefined {
  const ghost = view.state.field(ghostField);
  if (!ghost) return undefined;
  const { at, text, replaced, request } = ghost;
  const part = extent === "word" ? (WORD.exec(text)?.[0] ?? text) : text;
  // Closing brackets that the text brings along stay until all of it is accepted.
  const to = part === text ? at + replaced : at;
  return {
    changes: { from: at, to, insert: part },
    selection: { anchor: at + part.length },
    annotations: accepting.of({ request, extent, inserted: part }),
    userEvent: "input.complete",
    scrollIntoView: true,
  };
}

function accept(extent: Extent) {
  return (view: EditorView): boolean => {
    const change = acceptance(view, extent);
    if (change) view.dispatch(change);
    return change !== undefined;
  };
}

/** The extension; `dismiss` and `ask` are called for their keys. */
export function ghostText(dismiss: () => void, ask: () => void): Extension {
  const isShown = (view: EditorView) => view.state.field(ghostField) !== undefined;
  const asked = () => {
    ask();
    return true;
  };
  const dismissed = (view: EditorView) => {
    if (!isShown(view)) return false;
    dismiss();
    return true;
  };
  return [
    ghostField,
    Prec.highest(
      keymap.of([
        { key: "Tab", run: accept("whole") },
        { key: "Mod-ArrowRight", run: accept("word") },
        { key: "Escape", run: dismissed },
        { key: "Alt-\\", run: asked },
        { key: "Ctrl-Space", run: asked },
      ]),
    ),
  ];
}
