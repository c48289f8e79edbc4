/** The requests without an end, and which of them are of use at a place. */
import { type Answer, isVisible, type Rest } from "./answers";
import type { Trigger } from "./messages";
import { isEqual, type Place } from "./place";

interface OpenRequest {
  answer: Answer;
  trigger: Trigger;
  askedMs: number;
}

export class OpenRequests {
  readonly #open = new Map<number, OpenRequest>();

  /** With `typesAlong` a request is of use while its text is typed. */
  constructor(private readonly typesAlong: boolean) {}

  get isEmpty(): boolean {
    return this.#open.size === 0;
  }

  add(answer: Answer, trigger: Trigger, askedMs: number): void {
    this.#open.set(answer.request, { answer, trigger, askedMs });
  }

  /** Remove a request and return its answer so far. */
  remove(request: number): Answer | undefined {
    const answer = this.answerOf(request);
    this.#open.delete(request);
    return answer;
  }

  clear(): void {
    this.#open.clear();
  }

  /** Add text to the answer of a request; return the time to its first text, if this is it. */
  receive(request: number, text: string, atMs: number): number | undefined {
    const open = this.#open.get(request);
    if (!open || !text) return undefined;
    const isFirst = open.answer.text === "";
    open.answer.text += text;
    return isFirst ? atMs - open.askedMs : undefined;
  }

  answerOf(request: number): Answer | undefined {
    return this.#open.get(request)?.answer;
  }

  /** The answers without text, but for requests of users who asked. */
  unanswered(): Answer[] {
    const open = [...this.#open.values()].filter(({ trigger, answer }) => trigger !== "explicit" && !answer.text);
    return open.map(({ answer }) => answer);
  }

  /** The answers that can't continue the text at a place; without a place all. */
  uselessAt(place: Place | undefined): Answer[] {
    return this.#answers().filter((each) => !place || !this.#isOfUse(each, place));
  }

  /** Whether an answer may continue the text at a place. */
  hasAnyFor(place: Place): boolean {
    return this.#answers().some((each) => this.#isOfUse(each, place));
  }

  /** What there is to show of the newest request that has something to show. */
  restAt(place: Place): Rest | undefined {
    const newestFirst = this.#answers().reverse();
    const rests = newestFirst.filter((each) => this.#isOfUse(each, place)).map((each) => each.restAt(place));
    return rests.find(isVisible);
  }

  #answers(): Answer[] {
    return [...this.#open.values()].map(({ answer }) => answer);
  }

  #isOfUse(answer: Answer, place: Place): boolean {
    return isEqual(answer.place, place) || (this.typesAlong && answer.mayContinueAt(place));
  }
}
