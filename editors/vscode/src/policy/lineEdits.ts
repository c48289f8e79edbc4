/** Lines of a text, what changed of them, and edits that replace whole lines. Pure. */

/**
 * The replacement of whole lines. The first is counted from 0; without lines the text is inserted before it. The new
 * lines have their ends, but perhaps the document's last; no text deletes.
 */
export interface LineEdit {
  first: number;
  numLines: number;
  text: string;
}

/** What differs between two texts: the first line, and how many lines of each. */
export interface LineChange {
  first: number;
  numOld: number;
  numNew: number;
}

/** The lines of a text with their ends. What follows the last end is a line, unless it is empty. */
export const linesOf = (text: string): string[] => text.match(/[^\n]*\n|[^\n]+$/g) ?? [];

/** What changed from one text to another; undefined if nothing. */
export function changedLines(before: readonly string[], after: readonly string[]): LineChange | undefined {
  const most = Math.min(before.length, after.length);
  let first = 0;
  while (first < most && before[first] === after[first]) first += 1;
  let same = 0;
  while (same < most - first && before[before.length - 1 - same] === after[after.length - 1 - same]) same += 1;
  const [numOld, numNew] = [before.length - first - same, after.length - first - same];
  return numOld || numNew ? { first, numOld, numNew } : undefined;
}

/**
 * The least edit that does the same to a document; undefined if it changes nothing or is not for this document. An edit
 * may count the empty line behind the document's last line end as a line.
 */
export function fitted(lines: readonly string[], edit: LineEdit): LineEdit | undefined {
  let { first } = edit;
  const end = Math.min(first + edit.numLines, lines.length);
  if (first < 0 || first > end) return undefined;
  let added = linesOf(edit.text);
  if (end < lines.length) added = added.map(withEnd);
  const last = lines.at(-1);
  if (added.length && first === lines.length && last !== undefined && !last.endsWith("\n")) {
    first -= 1;
    added = [withEnd(last), ...added];
  }
  const change = changedLines(lines.slice(first, end), added);
  if (!change) return undefined;
  const text = added.slice(change.first, change.first + change.numNew).join("");
  return { first: first + change.first, numLines: change.numOld, text };
}

export const withEnd = (line: string) => (line.endsWith("\n") ? line : `${line}\n`);
