/** How much of an accepted text is still there some time later. Pure: offsets and texts go in. */

/** When it is looked at, in seconds since the acceptance. */
export const SURVIVAL_AFTER_S = [30, 90, 180, 360] as const;

/** Product of the lengths of two texts that are compared, which takes milliseconds. */
const MOST_COMPARED = 4_000_000;

/** A change of a document: so many characters from `offset` on were replaced. */
export interface Edit {
  offset: number;
  numDeleted: number;
  inserted: string;
}

/** The region of a document in which an accepted text stands, as the document changes. */
export class AcceptedText {
  #start: number;
  #end: number;

  constructor(
    readonly request: number,
    readonly uri: string,
    offset: number,
    private text: string,
  ) {
    this.#start = offset;
    this.#end = offset + text.length;
  }

  /** Take the next part of the same answer, if it continues this one; return whether it does. */
  extend(request: number, uri: string, offset: number, text: string): boolean {
    if (request !== this.request || uri !== this.uri || offset !== this.#end) return false;
    this.text += text;
    this.#end += text.length;
    return true;
  }

  /** Follow a change of the document. What is written at an edge of the region is outside. */
  apply({ offset, numDeleted, inserted }: Edit): void {
    const end = offset + numDeleted;
    const grownBy = inserted.length - numDeleted;
    if (end <= this.#start) {
      this.#start += grownBy;
      this.#end += grownBy;
    } else if (offset < this.#end) {
      const after = Math.max(0, this.#end - end);
      this.#start = Math.min(this.#start, offset);
      this.#end = offset + inserted.length + after;
    }
  }

  /**
   * Share of the accepted text that the document still has in its region, 0 to 1. Undefined if so much text has come in
   * its place that a comparison would take too long.
   */
  shareIn(document: string): number | undefined {
    const now = document.slice(this.#start, this.#end);
    if (now !== this.text && this.text.length * now.length > MOST_COMPARED) return undefined;
    return commonLength(this.text, now) / this.text.length;
  }
}

/** Length of the longest common subsequence. */
function commonLength(one: string, other: string): number {
  if (one === other) return one.length;
  let lengths = new Array<number>(other.length + 1).fill(0);
  for (const character of one) {
    const next = [0];
    for (let j = 1; j <= other.length; j++) {
      const isSame = character === other[j - 1];
      next[j] = isSame ? (lengths[j - 1] ?? 0) + 1 : Math.max(lengths[j] ?? 0, next[j - 1] ?? 0);
    }
    lengths = next;
  }
  return lengths[other.length] ?? 0;
}
