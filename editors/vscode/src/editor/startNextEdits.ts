/** Joins the parts of next edits. */
import * as vscode from "vscode";
import { type NextEditHooks, NextEdits } from "../nextEdits";
import { RecentEdits } from "../policy/recentEdits";
import { EditDecorations } from "./editDecorations";
import { NextEditView } from "./nextEditView";
import type { Settings } from "./settings";
import { survivalFeedback } from "./survival";

export interface RunningNextEdits {
  edits: NextEdits;
  view: NextEditView;
  all: vscode.Disposable;
}

/** Start to listen to VS Code, on a session that exists by then. */
export function startNextEdits(
  settings: Settings,
  hooks: Pick<NextEditHooks, "session" | "describe" | "onAnswer">,
): RunningNextEdits {
  const recent = new RecentEdits(); // the settings may forbid files that were allowed
  const edits: NextEdits = new NextEdits({
    ...hooks,
    recentEdits: () => recent.choose(),
    onShow: (shown) => view.show(shown),
  });
  const survival = survivalFeedback(hooks.session, (request) => edits.sequenceOf(request));
  const decorations = new EditDecorations();
  const view = new NextEditView(edits, recent, survival, decorations, settings);
  edits.away();
  return { edits, view, all: vscode.Disposable.from(view.register(), edits, survival, decorations) };
}
