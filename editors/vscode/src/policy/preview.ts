/** How an edit is drawn with decorations, which can't add lines: new text stands beside lines of the document. Pure. */
import { type LineEdit, linesOf } from "./lineEdits";

/** Stands for a line break. */
const BREAK = " ⏎ ";

/** Text beside a line. */
export interface Beside {
  line: number;
  text: string;
  /** At the line's beginning rather than at its end. */
  isBefore: boolean;
}

export interface Preview {
  /** Lines that are replaced or deleted. */
  removed: number[];
  added: Beside[];
}

/** Each new line stands beside the line that it replaces, further ones beside the last of these. */
export function previewOf({ first, numLines, text }: LineEdit): Preview {
  const added = linesOf(text).map((line) => line.trimEnd());
  const removed = Array.from({ length: numLines }, (_, index) => first + index);
  if (numLines === 0) {
    const joined = added.join(BREAK);
    const beside =
      first === 0
        ? { line: 0, text: joined + BREAK, isBefore: true }
        : { line: first - 1, text: BREAK + joined, isBefore: false };
    return { removed, added: [beside] };
  }
  const own = added.slice(0, numLines - 1);
  const rest = added.slice(numLines - 1).map((line, index) => (index ? line : line.trimStart()));
  const beside = [...own.map((line) => line.trimStart()), ...(rest.length ? [rest.join(BREAK)] : [])];
  return { removed, added: beside.map((line, index) => ({ line: first + index, text: line, isBefore: false })) };
}

/** An edit as a diff, for a person. */
export function diffOf(old: readonly string[], { text }: LineEdit): string {
  const signed = (sign: string, lines: readonly string[]) => lines.map((line) => `${sign}${line.trimEnd()}`);
  return [...signed("-", old), ...signed("+", linesOf(text))].join("\n");
}
