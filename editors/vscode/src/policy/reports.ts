/** What is reported of an answer: each kind once, and no more accepted characters than the answer has. */
import type { Decision, Extent, FeedbackName } from "./messages";

type Report = Extract<Decision, { kind: "report" }>;

const NAMES: Record<Extent, FeedbackName> = { whole: "accepted", word: "accepted_word", line: "accepted_line" };

/** The reports on one answer. */
export class Reports {
  readonly #made = new Set<FeedbackName>();
  #numAccepted = 0;

  constructor(private readonly request: number) {}

  /** The editor has drawn the answer. */
  shown(): Report[] {
    return this.#once("shown");
  }

  /** The user dismissed the answer. Not reported if some of it was accepted. */
  rejected(): Report[] {
    return this.#numAccepted ? [] : this.#once("rejected");
  }

  /** The user accepted all of the answer's text or a part of it. */
  accepted(extent: Extent, inserted: string, text: string): Report[] {
    const characters = Math.min(inserted.length, text.length - this.#numAccepted);
    if (characters <= 0) return [];
    this.#numAccepted += characters;
    return [{ kind: "report", request: this.request, feedback: NAMES[extent], characters }];
  }

  /** The user accepted an edit with so many new characters; a deletion has none. */
  editAccepted(characters: number): Report[] {
    return this.#once("accepted", characters);
  }

  #once(feedback: FeedbackName, characters = 0): Report[] {
    if (this.#made.has(feedback)) return [];
    this.#made.add(feedback);
    return [{ kind: "report", request: this.request, feedback, characters }];
  }
}
