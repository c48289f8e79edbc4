/**
 * Carries out what the policy decides, with a session and a timer: asks, cancels, reports. Knows no VS Code.
 *
 * An editor tells it each event and then asks for an offer: the text to show at the present place, once it is whole, or
 * what lines there are after a second.
 */
import { status as Code } from "@grpc/grpc-js";
import { FeedbackKind, FinishReason, Mode, Trigger } from "completion-server-stubs";
import type { Answer, Question, Session } from "./client/session";
import { clip } from "./policy/clip";
import type { Change, Decision, Extent, FeedbackName, Text, Trigger as TriggerName } from "./policy/messages";
import { EditingPolicy } from "./policy/policy";
import type { PolicySettings } from "./policy/settings";

/** While an automatic request is open, later keys ask nothing. */
const TIMEOUT_MS: Record<TriggerName, number> = { automatic: 2_000, prefetch: 2_000, explicit: 15_000 };
const TRIGGERS: Record<TriggerName, Trigger> = {
  automatic: Trigger.AUTOMATIC,
  prefetch: Trigger.PREFETCH,
  explicit: Trigger.EXPLICIT,
};
export const FEEDBACK: Record<FeedbackName, FeedbackKind> = {
  shown: FeedbackKind.SHOWN,
  accepted: FeedbackKind.ACCEPTED,
  accepted_word: FeedbackKind.ACCEPTED_WORD,
  accepted_line: FeedbackKind.ACCEPTED_LINE,
  rejected: FeedbackKind.REJECTED,
};
/** Nobody waits longer for the rest of a block of lines, which a slow model writes word by word. */
const BLOCK_MS = 1_000;
/** Requests whose sequence numbers are kept for feedback. */
const NUM_KEPT = 256;

/** Text to show at the cursor; `replaced` characters behind the cursor are a part of it. */
export interface Offer {
  request: number;
  text: string;
  replaced: number;
}

interface OpenRequest {
  controller: AbortController;
  /** Whether `BLOCK_MS` have passed. */
  isLong: boolean;
  timer: NodeJS.Timeout;
  /** Feedback about a part of its text, which the server takes when it has ended. */
  reports: Extract<Decision, { kind: "report" }>[];
}

export type MultiLine = "auto" | "always" | "never";

export interface CompleterHooks {
  session(): Pick<Session, "complete" | "report">;
  /** What a request says besides the text; `earlier` is read before it, as the earlier cells of a notebook are. */
  describe(text: Text): Pick<Question, "languageId" | "snippets"> & { earlier?: string };
  onAnswer(answer: Answer): void;
  /** Hears whether a completion is shown or asked, perhaps more often than that changes. */
  onBusy?(isBusy: boolean): void;
  onAccepted?(): void;
}

export class Completer {
  readonly #policy: EditingPolicy;
  readonly #open = new Map<number, OpenRequest>();
  /** The session's sequence numbers of the policy's requests. */
  readonly #sequences = new Map<number, number>();
  #text?: Text;
  #shown?: Offer;
  #waiting?: (offer: Offer | undefined) => void;
  #timer?: NodeJS.Timeout;

  constructor(
    private readonly hooks: CompleterHooks,
    settings: Partial<PolicySettings>,
    private readonly multiLine: MultiLine,
  ) {
    this.#policy = new EditingPolicy(settings);
  }

  changed(text: Text, change: Change): void {
    this.#at(text, (policy, nowMs) => policy.changed(text, change, nowMs));
  }

  moved(text: Text): void {
    this.#at(text, (policy, nowMs) => policy.moved(text, nowMs));
  }

  explicit(text: Text): void {
    this.#at(text, (policy, nowMs) => policy.explicit(text, nowMs));
  }

  accepted(request: number, text: Text, extent: Extent, inserted: string): void {
    this.#at(text, (policy, nowMs) => policy.accepted(request, text, extent, inserted, nowMs));
    this.hooks.onAccepted?.();
  }

  rejected(): void {
    this.#decide((policy, nowMs) => policy.rejected(nowMs));
  }

  /** The editor has drawn the text of a request. */
  drawn(request: number): void {
    this.#decide((policy, nowMs) => policy.shown(request, nowMs));
  }

  left(): void {
    this.#decide((policy, nowMs) => policy.left(nowMs));
  }

  away(): void {
    this.#decide((policy, nowMs) => policy.away(nowMs));
  }

  back(): void {
    this.#decide((policy, nowMs) => policy.back(nowMs));
  }

  /** The text that is shown now, as far as it is there. */
  get shown(): Offer | undefined {
    return this.#shown;
  }

  /** Wait for the text to show at the present place; undefined if there is none, or on `signal`. */
  offer(signal: AbortSignal): Promise<Offer | undefined> {
    this.#waiting?.(undefined);
    return new Promise((resolve) => {
      this.#waiting = resolve;
      signal.addEventListener("abort", () => resolve(undefined), { once: true });
      this.#answerWaiting();
    });
  }

  /** The session's sequence number of a request, for feedback. */
  sequenceOf(request: number): number | undefined {
    return this.#sequences.get(request);
  }

  dispose(): void {
    clearTimeout(this.#timer);
    for (const { controller, timer } of this.#open.values()) {
      clearTimeout(timer);
      controller.abort();
    }
    this.#waiting?.(undefined);
  }

  #at(text: Text, event: (policy: EditingPolicy, nowMs: number) => Decision[]): void {
    this.#text = text;
    this.#decide(event);
  }

  /** Tell the policy of an event and carry out what it decides. */
  #decide(event: (policy: EditingPolicy, nowMs: number) => Decision[]): void {
    for (const decision of event(this.#policy, performance.now())) this.#carryOut(decision);
    this.hooks.onBusy?.(this.#shown !== undefined || this.#policy.isPending);
    this.#answerWaiting();
  }

  #answerWaiting(): void {
    const isReady = this.#shown !== undefined && this.#isReady(this.#shown);
    if (!isReady && this.#policy.isPending) return;
    this.#waiting?.(isReady ? this.#shown : undefined);
    this.#waiting = undefined;
  }

  /**
   * Text that may still grow may yet turn out to be incomplete; but behind the first one the server sends whole lines.
   * Which characters behind the cursor are a part of the text is only certain at its end.
   */
  #isReady({ request, text, replaced }: Offer): boolean {
    const open = this.#open.get(request);
    return !open || (open.isLong && replaced === 0 && text.trimStart().includes("\n"));
  }

  #carryOut(decision: Decision): void {
    switch (decision.kind) {
      case "ask":
        return void this.#ask(decision.request, decision.trigger, decision.mode === "multi_line");
      case "cancel":
        return this.#open.get(decision.request)?.controller.abort();
      case "show":
        this.#shown = decision;
        return;
      case "hide":
        this.#shown = undefined;
        return;
      case "wait":
        clearTimeout(this.#timer);
        this.#timer = setTimeout(
          () => this.#decide((policy, nowMs) => policy.tick(nowMs)),
          decision.untilMs - performance.now(),
        );
        return;
      case "report": {
        const open = this.#open.get(decision.request);
        if (open) return void open.reports.push(decision);
        const sequence = this.#sequences.get(decision.request);
        const { feedback, characters } = decision;
        if (sequence === undefined) return;
        this.hooks.session().report({ sequence, kind: FEEDBACK[feedback], acceptedCharacters: characters });
      }
    }
  }

  async #ask(request: number, trigger: TriggerName, isMultiLine: boolean): Promise<void> {
    const text = this.#text;
    if (!text) return;
    const controller = new AbortController();
    const open: OpenRequest = {
      controller,
      isLong: false,
      reports: [],
      timer: setTimeout(() => this.#waitedLong(open), BLOCK_MS),
    };
    this.#open.set(request, open);
    const isLong = this.multiLine === "always" || (this.multiLine === "auto" && isMultiLine);
    const { earlier = "", ...described } = this.hooks.describe(text);
    const question: Question = {
      ...clip(earlier + text.before, text.after),
      ...described,
      documentUri: text.uri,
      trigger: TRIGGERS[trigger],
      mode: isLong ? Mode.MULTI_LINE : Mode.SINGLE_LINE,
    };
    const onText = (part: string) => this.#decide((policy, nowMs) => policy.received(request, part, nowMs));
    const answer = await this.hooks.session().complete(question, TIMEOUT_MS[trigger], controller.signal, onText);
    clearTimeout(open.timer);
    this.#open.delete(request);
    this.#keepSequence(request, answer.sequence);
    for (const report of open.reports) this.#carryOut(report);
    const retryAfterMs = answer.error?.retryAfterMs ?? answer.end?.retryAfterMs;
    this.#decide((policy, nowMs) => policy.ended(request, reasonOf(answer), nowMs, retryAfterMs));
    this.hooks.onAnswer(answer);
  }

  #waitedLong(open: OpenRequest): void {
    open.isLong = true;
    this.#answerWaiting();
  }

  #keepSequence(request: number, sequence: number): void {
    this.#sequences.set(request, sequence);
    this.#sequences.delete(request - NUM_KEPT);
  }
}

/** Why an answer ended, as the policy reads it. */
function reasonOf({ end, error }: Answer): string {
  if (end) return FinishReason[end.finishReason].toLowerCase();
  if (!error) return "cancelled";
  return error.code === Code.DEADLINE_EXCEEDED ? "deadline" : "error";
}
