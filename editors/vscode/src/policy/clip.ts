/**
 * Cuts the text of a request. Its start moves in big steps, so that most keys leave the server's prefix cache valid.
 */

/** Characters before and after the cursor. The server's own window is smaller, and its limits are larger. */
const BEFORE = 64 * 1024;
const STEP = 16 * 1024;
const AFTER = 16 * 1024;

export function clip(before: string, after: string): { prefix: string; suffix: string } {
  const excess = before.length - BEFORE;
  let start = excess > 0 ? Math.ceil(excess / STEP) * STEP : 0;
  if (start > 0) start = before.indexOf("\n", start) + 1 || start;
  return { prefix: whole(before.slice(start)), suffix: whole(after.slice(0, AFTER)) };
}

/** Leave out the half of a character at an edge. */
const whole = (text: string) => text.replace(/^[\uDC00-\uDFFF]|[\uD800-\uDBFF]$/g, "");

/**
 * The text of a request for the next edit, of whole lines: one that is cut would be replaced as if the cut part were all
 * of it. Undefined if the lines are too long.
 */
export function clipLines(before: string, after: string): { prefix: string; suffix: string } | undefined {
  const { prefix, suffix } = clip(before, after);
  const isLine = prefix.length === before.length || before.at(-prefix.length - 1) === "\n";
  if (!isLine) return undefined;
  if (suffix.length === after.length) return { prefix, suffix };
  const end = suffix.lastIndexOf("\n") + 1;
  return end ? { prefix, suffix: suffix.slice(0, end) } : undefined;
}
