/** Survival feedback on the documents that are open in VS Code. */
import { FeedbackKind } from "completion-server-stubs";
import * as vscode from "vscode";
import type { Session } from "../client/session";
import { SurvivalFeedback } from "../feedback";

export function survivalFeedback(
  session: () => Pick<Session, "report">,
  sequenceOf: (request: number) => number | undefined,
): SurvivalFeedback {
  return new SurvivalFeedback({
    textOf: (uri) => vscode.workspace.textDocuments.find((each) => each.uri.toString() === uri)?.getText(),
    sequenceOf,
    report: (sequence, survivedAfterS, survivedShare) =>
      session().report({ sequence, kind: FeedbackKind.SURVIVED, survivedAfterS, survivedShare }),
  });
}
