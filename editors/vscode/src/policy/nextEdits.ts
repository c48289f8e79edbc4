/**
 * The policy of next edits: when to ask for one, and which answers are shown. Pure.
 *
 * As in policy.ts, each event changes the state, and then `#settle` looks at all of it. Completions go first: an edit
 * is asked and shown only while no completion is.
 */
import { type Asked, type EditOffer, type EditPlace, isSameText, offerOf } from "./editOffers";
import { type LineEdit, linesOf } from "./lineEdits";
import type { Change, EditDecision, Text } from "./messages";
import { DEFAULT_NEXT_EDIT_SETTINGS, type NextEditSettings } from "./settings";

/** The reason with which a request ends whose server does not write next edits. */
export const NO_NEXT_EDITS = "no_next_edits";
const ASKING_CHANGES: readonly Change[] = ["typed", "pasted", "deleted"];

/** A request that is to be sent when its time comes. */
interface Wish {
  dueMs: number;
  needsPause: boolean;
}

/** How a request ended: with a finish reason in lower case, or NO_NEXT_EDITS; "error" also for a call that failed. */
export interface EditEnd {
  reason: string;
  /** Its lines are counted from the cursor's. */
  edit?: LineEdit;
  /** The version of the document that the edit is for. */
  version?: number;
  retryAfterMs?: number;
}

/**
 * Decides for one editor window. Each method takes an event and its time, as those of `EditingPolicy` do. `version` is
 * the editor's number of the text, which no other text of the document gets. Give requests a time limit.
 */
export class NextEditPolicy {
  readonly #settings: NextEditSettings;
  #text: Text = { uri: "", before: "", after: "" };
  #place?: EditPlace;
  #wish?: Wish;
  #open?: Asked;
  #numAsked = 0;
  #answered?: EditPlace;
  /** The last one that was shown. */
  #offer?: EditOffer;
  #isShown = false;
  #rejected: string[] = [];
  /** Where the last rejection was, until another line changes. */
  #rejectedAt?: EditPlace;
  #waitsUntilMs?: number;
  #backoffUntilMs = 0;
  #isBusy = false;
  #isAway = false;
  #isRefused = false;
  #decisions: EditDecision[] = [];

  constructor(settings: Partial<NextEditSettings> = {}) {
    this.#settings = { ...DEFAULT_NEXT_EDIT_SETTINGS, ...settings };
  }

  /** The document changed; if an editor can't tell whether by an acceptance, `accepted` may follow. */
  changed(text: Text, version: number, change: Change, atMs: number): EditDecision[] {
    const place = this.#goTo(text, version);
    if (!isSameLine(place, this.#rejectedAt)) this.#rejectedAt = undefined;
    const asks = ASKING_CHANGES.includes(change);
    this.#wish = asks ? { dueMs: atMs + this.#settings.pauseMs, needsPause: true } : undefined;
    return this.#settle(atMs);
  }

  /** The cursor moved, or another document came to the front. */
  moved(text: Text, version: number, atMs: number): EditDecision[] {
    this.#goTo(text, version);
    this.#restartPause(atMs);
    return this.#settle(atMs);
  }

  /** The editor, which decides by itself when to ask, wants the next edit. */
  wanted(text: Text, version: number, atMs: number): EditDecision[] {
    this.#goTo(text, version);
    this.#wish = { dueMs: atMs, needsPause: false };
    return this.#settle(atMs);
  }

  /** The user accepted the edit of a request, or without one a completion; `text` is the document after that. */
  accepted(request: number | undefined, text: Text, version: number, atMs: number): EditDecision[] {
    const offer = this.#offer;
    if (offer?.request === request && offer) this.#decisions.push(...offer.reports.editAccepted(offer.characters));
    this.#goTo(text, version);
    this.#wish = { dueMs: atMs, needsPause: false };
    return this.#settle(atMs);
  }

  /** The user dismissed the shown edit (Esc). */
  rejected(atMs: number): EditDecision[] {
    if (this.#isShown && this.#offer) {
      this.#decisions.push(...this.#offer.reports.rejected());
      const { numRejections } = this.#settings;
      this.#rejected = numRejections ? [...this.#rejected, this.#offer.content].slice(-numRejections) : [];
      this.#rejectedAt = this.#place;
      this.#hide();
    }
    return this.#settle(atMs);
  }

  /** The editor has drawn the edit of a request. */
  shown(request: number, atMs: number): EditDecision[] {
    if (this.#offer?.request === request) this.#decisions.push(...this.#offer.reports.shown());
    return this.#settle(atMs);
  }

  /** A request ended, perhaps with an edit. */
  ended(request: number, { reason, edit, version, retryAfterMs }: EditEnd, atMs: number): EditDecision[] {
    const asked = this.#open;
    if (asked?.request !== request) return this.#settle(atMs);
    this.#open = undefined;
    if (reason === "stop") {
      if (!edit || !this.#isBusy) this.#answered = asked.place; // an edit that can't be shown now may be asked for again
      if (edit && version === asked.place.version) this.#take(asked, edit);
    } else if (reason === NO_NEXT_EDITS) this.#isRefused = true;
    else if (reason === "shed" || reason === "error") {
      this.#backoffUntilMs = Math.max(this.#backoffUntilMs, atMs + (retryAfterMs ?? this.#settings.shedMs));
    }
    return this.#settle(atMs);
  }

  /** A completion is shown or asked, or is no more. */
  busy(isBusy: boolean, atMs: number): EditDecision[] {
    if (this.#isBusy && !isBusy) this.#restartPause(atMs);
    this.#isBusy = isBusy;
    return this.#settle(atMs);
  }

  /** The time of the last `wait` has come. */
  tick(atMs: number): EditDecision[] {
    this.#waitsUntilMs = undefined;
    return this.#settle(atMs);
  }

  /** The connection was lost, and with it the open request. */
  away(atMs: number): EditDecision[] {
    this.#isAway = true;
    this.#open = undefined;
    return this.#settle(atMs);
  }

  /** There is a connection again, perhaps to a server with another model. */
  back(atMs: number): EditDecision[] {
    this.#isAway = this.#isRefused = false;
    return this.#settle(atMs);
  }

  /** The editor lost the focus, or next edits were switched off. */
  left(atMs: number): EditDecision[] {
    this.#place = this.#wish = this.#answered = undefined;
    return this.#settle(atMs);
  }

  #goTo(text: Text, version: number): EditPlace {
    this.#text = text;
    this.#place = { uri: text.uri, version, line: text.before.split("\n").length - 1 };
    return this.#place;
  }

  #restartPause(atMs: number): void {
    if (this.#wish?.needsPause) this.#wish = { dueMs: atMs + this.#settings.pauseMs, needsPause: true };
  }

  /** Show the edit of an answer, unless it is stale, changes nothing or was rejected. */
  #take(asked: Asked, edit: LineEdit): void {
    if (this.#isBusy || !isSameText(asked.place, this.#place)) return;
    const offer = offerOf(asked, edit);
    if (!offer || this.#rejected.includes(offer.content)) return;
    this.#offer = offer;
    this.#isShown = true;
    const { request, place } = offer;
    this.#decisions.push({ kind: "showEdit", request, version: place.version, edit: offer.edit });
  }

  #hide(): void {
    if (this.#isShown) this.#decisions.push({ kind: "hide" });
    this.#isShown = false;
  }

  /** Decide what is cancelled, hidden and asked in the present state. */
  #settle(atMs: number): EditDecision[] {
    if (this.#open && !isSameText(this.#open.place, this.#place)) {
      this.#decisions.push({ kind: "cancel", request: this.#open.request });
      this.#open = undefined;
    }
    if (this.#isBusy || !isSameText(this.#offer?.place, this.#place)) this.#hide();
    if (this.#place && this.#wish) this.#ask(this.#place, this.#wish, atMs);
    const decisions = this.#decisions;
    this.#decisions = [];
    return decisions;
  }

  /** Ask for the present place, if that is of use and due. */
  #ask(place: EditPlace, wish: Wish, atMs: number): void {
    const dueMs = Math.max(wish.dueMs, this.#backoffUntilMs);
    if (this.#isInVain(place)) this.#wish = undefined;
    if (!this.#wish || this.#isBusy) return;
    if (atMs >= dueMs) {
      const request = ++this.#numAsked;
      this.#open = { request, place, lines: linesOf(this.#text.before + this.#text.after) };
      this.#wish = undefined;
      this.#decisions.push({ kind: "askEdit", request });
    } else if (this.#waitsUntilMs !== dueMs) {
      this.#waitsUntilMs = dueMs;
      this.#decisions.push({ kind: "wait", untilMs: dueMs });
    }
  }

  /** Whether the answer can't come, was rejected here, is awaited or is known. */
  #isInVain(place: EditPlace): boolean {
    if (this.#isAway || this.#isRefused || this.#open || isSameLine(place, this.#rejectedAt)) return true;
    const answered = this.#answered;
    if (!answered || !isSameText(answered, place)) return false;
    return Math.abs(place.line - answered.line) <= this.#settings.nearLines;
  }
}

const isSameLine = (one: EditPlace, other: EditPlace | undefined) => one.uri === other?.uri && one.line === other.line;
