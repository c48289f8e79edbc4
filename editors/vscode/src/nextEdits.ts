/** Carries out what the policy of next edits decides, with a session and a timer: asks, cancels, reports. Knows no VS Code. */
import { status as Code } from "@grpc/grpc-js";
import { FinishReason, Mode, Trigger } from "completion-server-stubs";
import type { Answer, Question, Session } from "./client/session";
import { FEEDBACK } from "./completer";
import { clipLines } from "./policy/clip";
import type { LineEdit } from "./policy/lineEdits";
import type { Change, EditDecision, Text } from "./policy/messages";
import { type EditEnd, NextEditPolicy, NO_NEXT_EDITS } from "./policy/nextEdits";
import type { RecentEdit } from "./policy/recentEdits";

const TIMEOUT_MS = 5_000;
/** Requests whose sequence numbers are kept for feedback. */
const NUM_KEPT = 64;

/** An edit to show, of this version of this document and no other. */
export interface ShownEdit {
  request: number;
  uri: string;
  version: number;
  edit: LineEdit;
}

export interface NextEditHooks {
  session(): Pick<Session, "complete" | "report">;
  /** What a request says besides the text. */
  describe(text: Text): Pick<Question, "languageId" | "snippets">;
  recentEdits(): RecentEdit[];
  /** Show an edit instead of what was shown, or nothing. */
  onShow(shown: ShownEdit | undefined): void;
  onAnswer(answer: Answer): void;
}

export class NextEdits {
  readonly #policy = new NextEditPolicy();
  readonly #open = new Map<number, AbortController>();
  /** The session's sequence numbers of the policy's requests. */
  readonly #sequences = new Map<number, number>();
  #text?: Text;
  #version = 0;
  #timer?: NodeJS.Timeout;

  constructor(private readonly hooks: NextEditHooks) {}

  changed(text: Text, version: number, change: Change): void {
    this.#at(text, version, (policy, nowMs) => policy.changed(text, version, change, nowMs));
  }

  moved(text: Text, version: number): void {
    this.#at(text, version, (policy, nowMs) => policy.moved(text, version, nowMs));
  }

  accepted(request: number, text: Text, version: number): void {
    this.#at(text, version, (policy, nowMs) => policy.accepted(request, text, version, nowMs));
  }

  /** The user accepted a completion; the document is known as it is since then. */
  completionAccepted(): void {
    const text = this.#text;
    if (text) this.#decide((policy, nowMs) => policy.accepted(undefined, text, this.#version, nowMs));
  }

  rejected(): void {
    this.#decide((policy, nowMs) => policy.rejected(nowMs));
  }

  /** The editor has drawn the edit of a request. */
  drawn(request: number): void {
    this.#decide((policy, nowMs) => policy.shown(request, nowMs));
  }

  /** Whether a completion is shown or asked. */
  busy(isBusy: boolean): void {
    this.#decide((policy, nowMs) => policy.busy(isBusy, nowMs));
  }

  left(): void {
    this.#text = undefined;
    this.#decide((policy, nowMs) => policy.left(nowMs));
  }

  away(): void {
    this.#decide((policy, nowMs) => policy.away(nowMs));
  }

  back(): void {
    this.#decide((policy, nowMs) => policy.back(nowMs));
  }

  /** The session's sequence number of a request, for feedback. */
  sequenceOf(request: number): number | undefined {
    return this.#sequences.get(request);
  }

  dispose(): void {
    this.left();
    clearTimeout(this.#timer);
  }

  #at(text: Text, version: number, event: (policy: NextEditPolicy, nowMs: number) => EditDecision[]): void {
    this.#text = text;
    this.#version = version;
    this.#decide(event);
  }

  #decide(event: (policy: NextEditPolicy, nowMs: number) => EditDecision[]): void {
    for (const decision of event(this.#policy, performance.now())) this.#carryOut(decision);
  }

  #carryOut(decision: EditDecision): void {
    switch (decision.kind) {
      case "askEdit":
        return void this.#ask(decision.request);
      case "cancel":
        return this.#open.get(decision.request)?.abort();
      case "showEdit":
        return this.hooks.onShow({ ...decision, uri: this.#text?.uri ?? "" });
      case "hide":
        return this.hooks.onShow(undefined);
      case "wait": {
        clearTimeout(this.#timer);
        const tick = () => this.#decide((policy, nowMs) => policy.tick(nowMs));
        this.#timer = setTimeout(tick, decision.untilMs - performance.now());
        return;
      }
      case "report": {
        const sequence = this.#sequences.get(decision.request);
        const { feedback, characters } = decision;
        if (sequence === undefined) return;
        this.hooks.session().report({ sequence, kind: FEEDBACK[feedback], acceptedCharacters: characters });
      }
    }
  }

  async #ask(request: number): Promise<void> {
    const text = this.#text;
    const lines = text && clipLines(text.before, text.after);
    if (!lines) return this.#decide((policy, nowMs) => policy.ended(request, { reason: "stop" }, nowMs));
    const controller = new AbortController();
    this.#open.set(request, controller);
    const recentEdits = this.hooks.recentEdits().map(({ uri, diff }) => ({ documentUri: uri, diff }));
    const question: Question = {
      ...lines,
      ...this.hooks.describe(text),
      documentUri: text.uri,
      trigger: Trigger.AUTOMATIC,
      mode: Mode.NEXT_EDIT,
      nextEdit: { documentVersion: this.#version, recentEdits },
    };
    const answer = await this.hooks.session().complete(question, TIMEOUT_MS, controller.signal);
    this.#open.delete(request);
    this.#sequences.set(request, answer.sequence);
    this.#sequences.delete(request - NUM_KEPT);
    this.#decide((policy, nowMs) => policy.ended(request, endOf(answer), nowMs));
    this.hooks.onAnswer(answer);
  }
}

/** How an answer ended, as the policy reads it. A server that is older than next edits does not know the mode. */
function endOf({ end, error }: Answer): EditEnd {
  const isModeUnknown = error?.code === Code.INVALID_ARGUMENT && error.fields.includes("mode");
  if (error?.reason === "NO_NEXT_EDITS" || isModeUnknown) return { reason: NO_NEXT_EDITS };
  const retryAfterMs = error?.retryAfterMs ?? end?.retryAfterMs;
  if (end) {
    const { edit, finishReason } = end;
    const lines = edit && { first: edit.firstLine, numLines: edit.lineCount, text: edit.text };
    const reason = FinishReason[finishReason].toLowerCase();
    return { reason, edit: lines, version: edit?.documentVersion, retryAfterMs };
  }
  if (!error) return { reason: "cancelled" };
  return { reason: error.code === Code.DEADLINE_EXCEEDED ? "deadline" : "error", retryAfterMs };
}
