/** What is left of an answer at a place, and the answers that are remembered. */
import { isEqual, type Place, typedSince } from "./place";
import { Reports } from "./reports";

/** What is left of an answer at a place. `replaced` closing brackets behind the cursor are a part of the text. */
export interface Rest {
  answer: Answer;
  text: string;
  replaced: number;
}

/** Whether there is more than white space to show. */
export const isVisible = (rest: Rest | undefined): rest is Rest => rest !== undefined && rest.text.trim() !== "";

/** A request's answer so far. */
export class Answer {
  text = "";
  readonly reports: Reports;

  constructor(
    readonly request: number,
    readonly place: Place,
  ) {
    this.reports = new Reports(request);
  }

  /**
   * What is left of the answer at a place; undefined if the place contradicts it. Until the answer has the brackets
   * that the editor closed there is nothing to show.
   */
  restAt(place: Place): Rest | undefined {
    const since = typedSince(place, this.place);
    if (!since || !this.text.startsWith(since.typed)) return undefined;
    const rest = this.text.slice(since.typed.length);
    return { answer: this, text: hasInOrder(rest, since.closers) ? rest : "", replaced: since.closers.length };
  }

  /** Whether an open answer is still of use: what was typed is its text so far, or goes on from there. */
  mayContinueAt(place: Place): boolean {
    const since = typedSince(place, this.place);
    return since !== undefined && (this.text.startsWith(since.typed) || since.typed.startsWith(this.text));
  }
}

/** The answers of recent places; the least recently used one is forgotten first. */
export class KnownAnswers {
  /** The most recently used one is the last. */
  #answers: Answer[] = [];

  constructor(private readonly numAnswers: number) {}

  /** Remember a whole answer, in place of an older one of the same place. */
  add(answer: Answer): void {
    const others = this.#answers.filter((each) => !isEqual(each.place, answer.place));
    this.#answers = [...others, answer].slice(-this.numAnswers);
  }

  forget(answer: Answer): void {
    this.#answers = this.#answers.filter((each) => each !== answer);
  }

  /** The answer of a request, if it is known. */
  ofRequest(number: number): Answer | undefined {
    return this.#answers.find((each) => each.request === number);
  }

  /**
   * The rest of the most recently used answer that has text left here; undefined if no answer is known. An answer
   * without text is known at its own place only, as is every answer without `typesAlong`.
   */
  find(place: Place, typesAlong: boolean): Rest | undefined {
    for (const answer of [...this.#answers].reverse()) {
      const rest = answer.restAt(place);
      if (rest && (isEqual(place, answer.place) || (typesAlong && isVisible(rest)))) {
        this.add(answer);
        return rest;
      }
    }
    return undefined;
  }
}

function hasInOrder(text: string, characters: string): boolean {
  let from = 0;
  for (const each of characters) {
    from = text.indexOf(each, from) + 1;
    if (from === 0) return false;
  }
  return true;
}
