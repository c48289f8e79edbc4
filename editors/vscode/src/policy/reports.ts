/** What is reported of an answer: each kind once, and no more accepted characters than the answer has. */
import type { Decision, Extent, FeedbackName } from "./messages";

const NAMES: Record<Extent, FeedbackName> = { whole: "accepted", word: "accepted_word", line: "accepted_line" };

/** The reports on one answer. */
export class Reports {
  readonly #made = new Set<FeedbackName>();
  #numAccepted = 0;

  constructor(private readonly request: number) {}

  /** The editor has drawn the answer. */
  shown(): Decision[] {
    return this.#once("shown");
  }

  /** The user dismissed the answer. Not reported if some of it was accepted. */
  rejected(): Decision[] {
    return this.#numAccepted ? [] : this.#once("rejected");
  }

  /** The user accepted all of the answer's text or a part of it. */
  accepted(extent: Extent, inserted: string, text: string): Decision[] {
    const characters = Math.min(inserted.length, text.length - this.#numAccepted);
    if (characters <= 0) return [];
    this.#numAccepted += characters;
    return [{ kind: "report", request: this.request, feedback: NAMES[extent], characters }];
  }

  #once(feedback: FeedbackName): Decision[] {
    if (this.#made.has(feedback)) return [];
    this.#made.add(feedback);
    return [{ kind: "report", request: this.request, feedback, characters: 0 }];
  }
}
