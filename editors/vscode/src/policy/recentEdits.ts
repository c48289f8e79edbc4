/**
 * What the user changed last, as hunks of unified diffs that a request for the next edit sends along. Pure.
 *
 * Changes that are close in place and time are one hunk. Only the newest hunk can grow; the others are history and keep
 * the line numbers that they had.
 */
import { changedLines, linesOf, withEnd } from "./lineEdits";
import { DEFAULT_RECENT_EDIT_SETTINGS, type RecentEditSettings } from "./settings";

/** A change that the user made, as in the contract. */
export interface RecentEdit {
  uri: string;
  /** A hunk of a unified diff. */
  diff: string;
}

/** Lines of a document's present text that took the place of others. */
interface Hunk {
  uri: string;
  start: number;
  old: readonly string[];
  numNew: number;
  changedMs: number;
}

/** The user's recent edits; the oldest one is forgotten first. */
export class RecentEdits {
  readonly #settings: RecentEditSettings;
  readonly #lines = new Map<string, string[]>();
  #closed: RecentEdit[] = [];
  /** The newest one, which may still grow. */
  #hunk?: Hunk;

  constructor(settings: Partial<RecentEditSettings> = {}) {
    this.#settings = { ...DEFAULT_RECENT_EDIT_SETTINGS, ...settings };
  }

  /** Take the text of a document that was opened or changed. Lines end with "\n". */
  update(uri: string, text: string, atMs: number): void {
    const lines = linesOf(text);
    const before = this.#lines.get(uri);
    const change = before && changedLines(before, lines);
    if (before && change) {
      const { first, numOld, numNew } = change;
      const made: Hunk = { uri, start: first, old: before.slice(first, first + numOld), numNew, changedMs: atMs };
      const hunk = this.#hunk;
      if (hunk && this.#isClose(hunk, made)) this.#hunk = joined(hunk, made, before);
      else {
        this.#closed = [...this.#closed, ...this.#newest()].slice(-this.#settings.numEdits);
        this.#hunk = made;
      }
    }
    this.#lines.set(uri, lines);
  }

  /** Forget a document that was closed or may not be sent, and its edits. */
  forget(uri: string): void {
    this.#lines.delete(uri);
    this.#closed = this.#closed.filter((each) => each.uri !== uri);
    if (this.#hunk?.uri === uri) this.#hunk = undefined;
  }

  /** The newest edits that fit into the budget, the oldest first. */
  choose(): RecentEdit[] {
    let left = this.#settings.budgetBytes;
    const newestFirst = [...this.#closed, ...this.#newest()].slice(-this.#settings.numEdits).reverse();
    const found = newestFirst.filter(({ diff }) => {
      const size = numBytes(diff);
      if (size > left) return false;
      left -= size;
      return true;
    });
    return found.reverse();
  }

  #isClose(hunk: Hunk, made: Hunk): boolean {
    const { mergeMs, mergeLines } = this.#settings;
    if (hunk.uri !== made.uri || made.changedMs - hunk.changedMs > mergeMs) return false;
    const below = made.start - hunk.start - hunk.numNew;
    const above = hunk.start - made.start - made.old.length;
    return Math.max(below, above) <= mergeLines;
  }

  /** The newest hunk, if it changes something and is not too large ever to be sent. */
  #newest(): RecentEdit[] {
    if (!this.#hunk) return [];
    const { uri } = this.#hunk;
    const diff = diffOf(this.#hunk, this.#lines.get(uri) ?? [], this.#settings.contextLines);
    return diff && numBytes(diff) <= this.#settings.budgetBytes ? [{ uri, diff }] : [];
  }
}

/** A hunk and a later one of the document as one; `between` was the text between the two. */
function joined(hunk: Hunk, later: Hunk, between: readonly string[]): Hunk {
  const start = Math.min(hunk.start, later.start);
  const ownEnd = hunk.start + hunk.numNew;
  const end = Math.max(ownEnd, later.start + later.old.length);
  const old = [...between.slice(start, hunk.start), ...hunk.old, ...between.slice(ownEnd, end)];
  return { ...later, start, old, numNew: end - start + later.numNew - later.old.length };
}

/** A hunk as a diff, "" if it changes nothing. `lines` are those of its document. */
function diffOf(hunk: Hunk, lines: readonly string[], numContext: number): string {
  const added = lines.slice(hunk.start, hunk.start + hunk.numNew);
  const change = changedLines(hunk.old, added);
  if (!change) return "";
  const { first, numOld, numNew } = change;
  const start = hunk.start + first;
  const before = lines.slice(Math.max(0, start - numContext), start);
  const after = lines.slice(start + numNew, start + numNew + numContext);
  const signed = (sign: string, some: readonly string[]) => some.map((line) => sign + withEnd(line));
  const span = (num: number) => spanOf(start - before.length, before.length + num + after.length);
  return [
    `@@ -${span(numOld)} +${span(numNew)} @@\n`,
    ...signed(" ", before),
    ...signed("-", hunk.old.slice(first, first + numOld)),
    ...signed("+", added.slice(first, first + numNew)),
    ...signed(" ", after),
  ].join("");
}

/** Lines as a hunk's head names them: counted from 1; those of nothing begin at the line before. */
const spanOf = (start: number, numLines: number) => `${numLines ? start + 1 : start},${numLines}`;
const numBytes = (text: string) => new TextEncoder().encode(text).length;
