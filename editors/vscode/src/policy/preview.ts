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

/** Each new line stands beside the one of the old lines that it replaces, further ones beside the last of these. */
export function previewOf(old: readonly string[], { first, text }: LineEdit): Preview {
  const added = linesOf(text).map((line) => line.replace(/\n$/, ""));
  if (old.length === 0) {
    const joined = added.join(BREAK);
    const isBefore = first === 0;
    const beside = { line: isBefore ? 0 : first - 1, text: isBefore ? joined + BREAK : BREAK + joined, isBefore };
    return { removed: [], added: [beside] };
  }
  const further = added.slice(old.length).map((line) => BREAK + line);
  const preview: Preview = { removed: [], added: [] };
  for (const [index, line] of old.entries()) {
    const isSame = added[index] === line;
    const own = isSame ? "" : (added[index] ?? "").trim();
    const beside = index === old.length - 1 ? own + further.join("") : own;
    if (!isSame) preview.removed.push(first + index);
    if (beside) preview.added.push({ line: first + index, text: beside, isBefore: false });
  }
  return preview;
}

/** An edit as a diff, for a person. */
export function diffOf(old: readonly string[], { text }: LineEdit): string {
  const signed = (sign: string, lines: readonly string[]) => lines.map((line) => `${sign}${line.trimEnd()}`);
  return [...signed("-", old), ...signed("+", linesOf(text))].join("\n");
}
