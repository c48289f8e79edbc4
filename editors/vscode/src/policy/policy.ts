/**
 * When to ask and what to show: takes events with their times and returns decisions. Pure: knows neither gRPC nor VS Code.
 *
 * Each event changes the state; then one function, `#settle`, looks at all of it and decides. So the rules hold whatever
 * the order of events: text is shown only where it continues the document, and nothing is asked that is known, open,
 * rejected or in vain. completion_client/editing is the same policy in Python; both pass editors/policy_cases.json.
 */
import { Answer, isVisible, KnownAnswers, type Rest } from "./answers";
import type { Decision, Event, Text, Trigger } from "./messages";
import { isEqual, isJoinable, isStillRejected, modeAt, type Place, placeOf } from "./place";
import { Rhythm } from "./rhythm";
import { DEFAULT_SETTINGS, type PolicySettings } from "./settings";

type EventOf<Kind extends Event["kind"]> = Extract<Event, { kind: Kind }>;

/** A request without its end. */
interface OpenRequest {
  answer: Answer;
  trigger: Trigger;
  askedMs: number;
}

/** Decides for one editor window. Times never decrease. */
export class EditingPolicy {
  readonly #settings: PolicySettings;
  readonly #rhythm: Rhythm;
  readonly #known: KnownAnswers;
  readonly #open = new Map<number, OpenRequest>();
  #place?: Place;
  #rejected: Place[] = [];
  #numAsked = 0;
  /** A request for the present place that is to be sent when its time comes. */
  #wish?: { trigger: Trigger; dueMs: number };
  #waitsUntilMs?: number;
  #backoffUntilMs = 0;
  #isAway = false;
  #shown?: Rest;
  /** The answer that is shown or was shown last, unless it was rejected. */
  #lastShown?: Answer;
  #decisions: Decision[] = [];

  constructor(settings: Partial<PolicySettings> = {}) {
    this.#settings = { ...DEFAULT_SETTINGS, ...settings };
    this.#rhythm = new Rhythm(this.#settings);
    this.#known = new KnownAnswers(this.#settings.numAnswers);
  }

  /** The decisions on an event, in the order in which to carry them out. */
  handle(event: Event, atMs: number): Decision[] {
    this.#take(event, atMs);
    this.#settle(atMs);
    const decisions = this.#decisions;
    this.#decisions = [];
    return decisions;
  }

  /** Whether an answer may still come for the present place, without a further event of the user. */
  get isPending(): boolean {
    return this.#wish !== undefined || this.#open.size > 0;
  }

  /** Change the state as the event says. */
  #take(event: Event, atMs: number): void {
    switch (event.kind) {
      case "changed":
        return this.#change(event, atMs);
      case "moved":
        return void this.#goTo(event.text);
      case "explicit":
        return this.#want(event.text, atMs);
      case "accepted":
        return this.#accept(event, atMs);
      case "rejected":
        return this.#reject();
      case "shown":
        if (this.#lastShown?.request === event.request) this.#decisions.push(...this.#lastShown.reports.shown());
        return;
      case "answered":
        return this.#receive(event.request, event.text, atMs);
      case "ended":
        return this.#end(event, atMs);
      case "away":
        this.#isAway = true;
        return this.#open.clear();
      case "back":
        this.#isAway = false;
        return;
      case "left":
        this.#place = this.#wish = undefined;
        return;
      case "tick":
        this.#waitsUntilMs = undefined;
    }
  }

  #goTo(text: Text): Place {
    const place = placeOf(text, this.#settings.contextChars);
    if (!this.#place || !isEqual(place, this.#place)) {
      this.#place = place;
      this.#wish = undefined;
    }
    return this.#place;
  }

  #change(event: EventOf<"changed">, atMs: number): void {
    const before = this.#place;
    const shown = this.#shown;
    const place = this.#goTo(event.text);
    if (event.change === "typed") {
      this.#rhythm.typed(atMs);
      if (shown && before && isEqual(shown.answer.place, before) && !shown.answer.restAt(place)) {
        this.#decisions.push(...shown.answer.reports.rejected());
      }
    }
    if (event.change === "typed" || event.change === "pasted") {
      this.#wish = { trigger: "automatic", dueMs: atMs + this.#rhythm.delayMs };
    }
  }

  /** Take the user's wish for a completion, which lifts a rejection and goes before what has no text yet. */
  #want(text: Text, atMs: number): void {
    const place = this.#goTo(text);
    this.#rejected = this.#rejected.filter((each) => !isStillRejected(place, each));
    this.#wish = { trigger: "explicit", dueMs: atMs };
    for (const { answer, trigger } of [...this.#open.values()]) {
      if (trigger !== "explicit" && !answer.text) this.#cancel(answer);
    }
  }

  #accept(event: EventOf<"accepted">, atMs: number): void {
    const answer = this.#lastShown;
    if (answer) this.#decisions.push(...answer.reports.accepted(event.extent, event.inserted, answer.text));
    this.#goTo(event.text);
    this.#wish = this.#settings.prefetches ? { trigger: "prefetch", dueMs: atMs } : undefined;
  }

  #reject(): void {
    if (!this.#shown || !this.#place) return;
    const { answer } = this.#shown;
    this.#decisions.push(...answer.reports.rejected());
    if (this.#settings.numRejections) {
      this.#rejected = [...this.#rejected, this.#place].slice(-this.#settings.numRejections);
    }
    this.#known.forget(answer);
    this.#lastShown = this.#wish = undefined;
  }

  #receive(number: number, text: string, atMs: number): void {
    const request = this.#open.get(number);
    if (!request || !text) return;
    if (!request.answer.text) this.#rhythm.answered(atMs - request.askedMs);
    request.answer.text += text;
  }

  #end(event: EventOf<"ended">, atMs: number): void {
    this.#receive(event.request, event.text ?? "", atMs);
    const request = this.#open.get(event.request);
    if (!request) return;
    this.#open.delete(event.request);
    if (event.reason === "stop" || event.reason === "length") this.#known.add(request.answer);
    else if (event.reason === "shed" || event.reason === "error") {
      const waitMs = event.retryAfterMs ?? this.#settings.shedMs;
      this.#backoffUntilMs = Math.max(this.#backoffUntilMs, atMs + waitMs);
    }
  }

  /** Decide what is cancelled, shown and asked in the present state. */
  #settle(atMs: number): void {
    const place = this.#place;
    if (!place || this.#rejected.some((each) => isStillRejected(place, each))) {
      this.#cancelUnless(undefined);
      this.#present(undefined);
      this.#wish = undefined;
      return;
    }
    this.#cancelUnless(place);
    const rest = this.#openRest(place) ?? this.#known.find(place, this.#settings.typesAlong);
    this.#present(rest);
    const wish = this.#wish;
    if (!wish || [...this.#open.values()].some(({ answer }) => this.#isOfUse(answer, place))) return;
    const isExplicit = wish.trigger === "explicit";
    const isKnown = rest && (isVisible(rest) || !isExplicit);
    const isInVain = this.#isAway || !(isJoinable(place) || isExplicit || !this.#settings.mindsLine);
    if (isKnown || isInVain) this.#wish = undefined;
    else this.#askWhenDue(wish, place, atMs);
  }

  #askWhenDue(wish: { trigger: Trigger; dueMs: number }, place: Place, atMs: number): void {
    const dueMs = wish.trigger === "explicit" ? wish.dueMs : Math.max(wish.dueMs, this.#backoffUntilMs);
    if (atMs >= dueMs) {
      const request = ++this.#numAsked;
      this.#open.set(request, { answer: new Answer(request, place), trigger: wish.trigger, askedMs: atMs });
      this.#decisions.push({ kind: "ask", request, trigger: wish.trigger, mode: modeAt(place) });
      this.#wish = undefined;
    } else if (this.#waitsUntilMs !== dueMs) {
      this.#waitsUntilMs = dueMs;
      this.#decisions.push({ kind: "wait", untilMs: dueMs });
    }
  }

  /** Cancel the open requests that are of no use at a place; without a place all. */
  #cancelUnless(place: Place | undefined): void {
    if (!this.#settings.cancels) return;
    for (const { answer } of [...this.#open.values()]) {
      if (!place || !this.#isOfUse(answer, place)) this.#cancel(answer);
    }
  }

  #cancel(answer: Answer): void {
    this.#open.delete(answer.request);
    this.#decisions.push({ kind: "cancel", request: answer.request });
  }

  #isOfUse(answer: Answer, place: Place): boolean {
    return isEqual(answer.place, place) || (this.#settings.typesAlong && answer.mayContinueAt(place));
  }

  /** What there is to show of the newest open request that has something to show. */
  #openRest(place: Place): Rest | undefined {
    const answers = [...this.#open.values()].map(({ answer }) => answer).reverse();
    const rests = answers.filter((each) => this.#isOfUse(each, place)).map((each) => each.restAt(place));
    return rests.find(isVisible);
  }

  /** Show a rest, if it has text, in place of what is shown. */
  #present(rest: Rest | undefined): void {
    const shown = isVisible(rest) ? rest : undefined;
    const before = this.#shown;
    this.#shown = shown;
    if (!shown) {
      if (before) this.#decisions.push({ kind: "hide" });
      return;
    }
    const { answer, text, replaced } = shown;
    this.#lastShown = answer;
    if (before?.answer === answer && before.text === text && before.replaced === replaced) return;
    this.#decisions.push({ kind: "show", request: answer.request, text, replaced });
  }
}
