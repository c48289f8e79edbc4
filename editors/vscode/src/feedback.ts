/** Reports how much of each accepted text survives, 30 to 360 s after the acceptance. Knows no VS Code. */
import { AcceptedText, type Edit, SURVIVAL_AFTER_S } from "./policy/survival";

export interface FeedbackHooks {
  /** The text of an open document, undefined if it is closed. */
  textOf(uri: string): string | undefined;
  /** The session's sequence number of a request, if it is still known. */
  sequenceOf(request: number): number | undefined;
  report(sequence: number, afterS: number, share: number): void;
}

export class SurvivalFeedback {
  #accepted: AcceptedText[] = [];
  readonly #timers = new Set<NodeJS.Timeout>();

  constructor(private readonly hooks: FeedbackHooks) {}

  /** The text of a request was accepted and stands at `offset`. A further word of the same text continues it. */
  accepted(request: number, uri: string, offset: number, text: string): void {
    if (this.#accepted.some((each) => each.extend(request, uri, offset, text))) return;
    const known = this.hooks.sequenceOf(request); // none yet of a request that has not ended
    const accepted = new AcceptedText(request, uri, offset, text);
    this.#accepted.push(accepted);
    for (const afterS of SURVIVAL_AFTER_S)
      this.#later(afterS, () => this.#look(accepted, known ?? this.hooks.sequenceOf(request), afterS));
  }

  /** A document changed. The offsets are those before the change. */
  edited(uri: string, edits: readonly Edit[]): void {
    const lastFirst = [...edits].sort((a, b) => b.offset - a.offset);
    for (const accepted of this.#accepted.filter((each) => each.uri === uri)) {
      for (const edit of lastFirst) accepted.apply(edit);
    }
  }

  dispose(): void {
    for (const timer of this.#timers) clearTimeout(timer);
    this.#accepted = [];
  }

  #look(accepted: AcceptedText, sequence: number | undefined, afterS: number): void {
    const document = this.hooks.textOf(accepted.uri);
    const share = document === undefined ? undefined : accepted.shareIn(document);
    if (share !== undefined && sequence !== undefined) this.hooks.report(sequence, afterS, share);
    if (afterS === SURVIVAL_AFTER_S.at(-1)) this.#accepted = this.#accepted.filter((each) => each !== accepted);
  }

  #later(afterS: number, act: () => void): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      act();
    }, afterS * 1000);
    this.#timers.add(timer);
  }
}
