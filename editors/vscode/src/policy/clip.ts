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
