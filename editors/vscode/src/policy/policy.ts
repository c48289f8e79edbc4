/**
 * When to ask and what to show: takes events with their times and returns decisions. Pure: knows neither gRPC nor VS
 * Code.
 *
 * Each event changes the state; then one function, `#settle`, looks at all of it and decides. So the rules hold
 * whatever the order of events: text is shown only where it continues the document, and nothing is asked that is known,
 * open, rejected or in vain. completion_client/editing is the same policy in Python; both pass
 * editors/policy_cases.json.
 */
import { Answer, isVisible, KnownAnswers, type Rest } from "./answers";
import type { Change, Decision, Extent, Text, Trigger } from "./messages";
import { OpenRequests } from "./openRequests";
import { isEqual, isJoinable, isStillRejected, modeAt, type Place, placeOf } from "./place";
import { Rhythm } from "./rhythm";
import { DEFAULT_SETTINGS, type PolicySettings } from "./settings";

/** A request for the present place that is to be sent when its time comes. */
interface Wish {
  trigger: Trigger;
  dueMs: number;
}

/**
 * Decides for one editor window. Each method takes an event and its time and returns the decisions in the order in
 * which to carry them out: reports, cancellations, what to show, what to ask. Times never decrease. Give requests a
 * time limit: while one is open that may still be of use, no other is asked.
 */
export class EditingPolicy {
  readonly #settings: PolicySettings;
  readonly #rhythm: Rhythm;
  readonly #known: KnownAnswers;
  readonly #open: OpenRequests;
  #place?: Place;
  #rejected: Place[] = [];
  #numAsked = 0;
  #wish?: Wish;
  #waitsUntilMs?: number;
  #backoffUntilMs = 0;
  #isAway = false;
  #shown?: Rest;
  #decisions: Decision[] = [];

  constructor(settings: Partial<PolicySettings> = {}) {
    this.#settings = { ...DEFAULT_SETTINGS, ...settings };
    this.#rhythm = new Rhythm(this.#settings);
    this.#known = new KnownAnswers(this.#settings.numAnswers);
    this.#open = new OpenRequests(this.#settings.typesAlong);
  }

  /** Whether an answer may still come for the present place without a further event of the user. */
  get isPending(): boolean {
    return this.#wish !== undefined || !this.#open.isEmpty;
  }

  /** The document changed, but not by an acceptance; if an editor can't tell, `accepted` may follow. */
  changed(text: Text, change: Change, atMs: number): Decision[] {
    const before = this.#place;
    const shown = this.#shown;
    const place = this.#goTo(text);
    if (change === "typed") {
      this.#rhythm.typed(atMs);
      if (shown && isAgainst(shown.answer, before, place)) this.#decisions.push(...shown.answer.reports.rejected());
    }
    if (change === "typed" || change === "pasted") {
      this.#wish = { trigger: "automatic", dueMs: atMs + this.#rhythm.delayMs };
    }
    return this.#settle(atMs);
  }

  /** The cursor moved, or another document came to the front. */
  moved(text: Text, atMs: number): Decision[] {
    this.#goTo(text);
    return this.#settle(atMs);
  }

  /** The user asked for a completion. That lifts a rejection and goes before requests that have no text yet. */
  explicit(text: Text, atMs: number): Decision[] {
    const place = this.#goTo(text);
    this.#rejected = this.#rejected.filter((each) => !isStillRejected(place, each));
    this.#wish = { trigger: "explicit", dueMs: atMs };
    this.#cancel(this.#open.unanswered());
    return this.#settle(atMs);
  }

  /** The user accepted the text of a request or the first part of it; `text` is the document after that. */
  accepted(request: number, text: Text, extent: Extent, inserted: string, atMs: number): Decision[] {
    const answer = this.#answer(request);
    if (answer) this.#decisions.push(...answer.reports.accepted(extent, inserted, answer.text));
    this.#goTo(text);
    this.#wish = this.#settings.prefetches ? { trigger: "prefetch", dueMs: atMs } : undefined;
    return this.#settle(atMs);
  }

  /** The user dismissed the shown text (Esc). */
  rejected(atMs: number): Decision[] {
    if (this.#shown && this.#place) {
      const { answer } = this.#shown;
      const { numRejections } = this.#settings;
      this.#decisions.push(...answer.reports.rejected());
      this.#rejected = numRejections ? [...this.#rejected, this.#place].slice(-numRejections) : [];
      this.#known.forget(answer);
    }
    return this.#settle(atMs);
  }

  /** The editor has drawn the text of a request. */
  shown(request: number, atMs: number): Decision[] {
    const answer = this.#answer(request);
    if (answer) this.#decisions.push(...answer.reports.shown());
    return this.#settle(atMs);
  }

  /** Text of a request came. */
  received(request: number, text: string, atMs: number): Decision[] {
    const ttftMs = this.#open.receive(request, text, atMs);
    if (ttftMs !== undefined) this.#rhythm.answered(ttftMs);
    return this.#settle(atMs);
  }

  /**
   * A request ended. `reason` is the finish reason in lower case, such as "stop"; "error" also for a call that failed.
   */
  ended(request: number, reason: string, atMs: number, retryAfterMs?: number): Decision[] {
    const answer = this.#open.remove(request);
    if (answer && (reason === "stop" || reason === "length")) this.#known.add(answer);
    else if (answer && (reason === "shed" || reason === "error")) {
      const waitMs = retryAfterMs ?? this.#settings.shedMs;
      this.#backoffUntilMs = Math.max(this.#backoffUntilMs, atMs + waitMs);
    }
    return this.#settle(atMs);
  }

  /** The time of the last `wait` has come. */
  tick(atMs: number): Decision[] {
    this.#waitsUntilMs = undefined;
    return this.#settle(atMs);
  }

  /** The connection was lost, and with it the open requests. */
  away(atMs: number): Decision[] {
    this.#isAway = true;
    this.#open.clear();
    return this.#settle(atMs);
  }

  /** There is a connection again. */
  back(atMs: number): Decision[] {
    this.#isAway = false;
    return this.#settle(atMs);
  }

  /** The editor lost the focus, or completions were switched off. */
  left(atMs: number): Decision[] {
    this.#place = this.#wish = undefined;
    return this.#settle(atMs);
  }

  /** The answer of a request that is open or remembered. */
  #answer(request: number): Answer | undefined {
    return this.#open.answerOf(request) ?? this.#known.ofRequest(request);
  }

  #goTo(text: Text): Place {
    const place = placeOf(text, this.#settings.contextChars);
    if (!this.#place || !isEqual(place, this.#place)) {
      this.#place = place;
      this.#wish = undefined;
    }
    return this.#place;
  }

  /** Decide what is cancelled, shown and asked in the present state. */
  #settle(atMs: number): Decision[] {
    const place = this.#place;
    if (!place || this.#rejected.some((each) => isStillRejected(place, each))) {
      this.#wish = undefined;
      this.#cancelUseless(undefined);
      this.#present(undefined);
    } else {
      this.#cancelUseless(place);
      const rest = this.#open.restAt(place) ?? this.#known.find(place, this.#settings.typesAlong);
      this.#present(rest);
      this.#ask(place, rest, atMs);
    }
    const decisions = this.#decisions;
    this.#decisions = [];
    return decisions;
  }

  /** Ask for the present place, if that is wished, of use and due. */
  #ask(place: Place, rest: Rest | undefined, atMs: number): void {
    const wish = this.#wish;
    if (!wish || this.#open.hasAnyFor(place)) return;
    if (this.#isInVain(wish, place, rest)) {
      this.#wish = undefined;
      return;
    }
    const dueMs = wish.trigger === "explicit" ? wish.dueMs : Math.max(wish.dueMs, this.#backoffUntilMs);
    if (atMs >= dueMs) {
      const request = ++this.#numAsked;
      this.#open.add(new Answer(request, place), wish.trigger, atMs);
      const mode = modeAt(place, wish.trigger !== "automatic");
      this.#decisions.push({ kind: "ask", request, trigger: wish.trigger, mode });
      this.#wish = undefined;
    } else if (this.#waitsUntilMs !== dueMs) {
      this.#waitsUntilMs = dueMs;
      this.#decisions.push({ kind: "wait", untilMs: dueMs });
    }
  }

  /** Whether the answer is known, can't come or can't be joined. A user who asks knows better. */
  #isInVain(wish: Wish, place: Place, rest: Rest | undefined): boolean {
    const isExplicit = wish.trigger === "explicit";
    if (rest && (isVisible(rest) || !isExplicit)) return true;
    return this.#isAway || (this.#settings.mindsLine && !isExplicit && !isJoinable(place));
  }

  #cancelUseless(place: Place | undefined): void {
    if (this.#settings.cancels) this.#cancel(this.#open.uselessAt(place));
  }

  #cancel(answers: readonly Answer[]): void {
    for (const { request } of answers) {
      this.#open.remove(request);
      this.#decisions.push({ kind: "cancel", request });
    }
  }

  /** Show a rest, if it has text, in place of what is shown. */
  #present(rest: Rest | undefined): void {
    const before = this.#shown;
    this.#shown = isVisible(rest) ? rest : undefined;
    if (!this.#shown) {
      if (before) this.#decisions.push({ kind: "hide" });
      return;
    }
    const { answer, text, replaced } = this.#shown;
    if (before?.answer === answer && before.text === text && before.replaced === replaced) return;
    this.#decisions.push({ kind: "show", request: answer.request, text, replaced });
  }
}

/** Whether a key contradicts the text of an answer, of which nothing had been typed. */
function isAgainst(answer: Answer, before: Place | undefined, place: Place): boolean {
  const isOfAnswer = before !== undefined && isEqual(answer.place, before) && place.uri === before.uri;
  return isOfAnswer && !answer.mayContinueAt(place);
}
