/** Places in documents: what is the same one, what was typed from one to the next, what a completion can join. */
import type { Mode, Text } from "./messages";

/** Characters that editors add behind the cursor by themselves. */
const CLOSERS = new Set(")]}>\"'`");
/** What may stand behind the cursor on its line where a completion is of use. */
const JOINED = new Set([...CLOSERS, ..." \t\r,;:{"]);
/** A line that ends so begins a block. */
const BEGINS_BLOCK = /[{([:>]$/;

/** A cursor in a document, with as much text on both sides as tells it from others. */
export interface Place {
  uri: string;
  before: string;
  after: string;
  numBefore: number;
  numAfter: number;
}

export function placeOf(text: Text, contextChars: number): Place {
  return {
    uri: text.uri,
    before: text.before.slice(Math.max(0, text.before.length - contextChars)),
    after: text.after.slice(0, contextChars),
    numBefore: text.before.length,
    numAfter: text.after.length,
  };
}

export function isEqual(a: Place, b: Place): boolean {
  const isAsLong = a.numBefore === b.numBefore && a.numAfter === b.numAfter;
  return isAsLong && a.uri === b.uri && a.before === b.before && a.after === b.after;
}

/**
 * What was typed since an earlier place, and the brackets that the editor closed behind it. Undefined if the text
 * differs in anything else, or if more was typed than a place keeps.
 */
export function typedSince(place: Place, earlier: Place): { typed: string; closers: string } | undefined {
  const numTyped = place.numBefore - earlier.numBefore;
  const numClosers = place.numAfter - earlier.numAfter;
  const isPossible = 0 <= numClosers && numClosers <= numTyped && numTyped <= place.before.length;
  if (place.uri !== earlier.uri || !isPossible) return undefined;
  const typed = place.before.slice(place.before.length - numTyped);
  const closers = place.after.slice(0, numClosers);
  const isSameBefore = (earlier.before + typed).endsWith(place.before);
  const isSameAfter = (closers + earlier.after).startsWith(place.after);
  return isSameBefore && isSameAfter && consistsOf(closers, CLOSERS) ? { typed, closers } : undefined;
}

/** Whether nothing but closing brackets and separators stands behind the cursor on its line. */
export const isJoinable = (place: Place) => consistsOf(firstLine(place.after), JOINED);

/**
 * What to ask for: many lines where a block or, with `isNew`, a line may begin, at the line's end. A block begins on a
 * blank line and behind an opening character.
 */
export function modeAt(place: Place, isNew: boolean): Mode {
  if (firstLine(place.after).trim()) return "single_line";
  const line = place.before.slice(place.before.lastIndexOf("\n") + 1).trim();
  return isNew || !line || BEGINS_BLOCK.test(line) ? "multi_line" : "single_line";
}

/** Whether a place is a rejected one: the same text, or only the word was typed on. */
export function isStillRejected(place: Place, rejected: Place): boolean {
  const since = typedSince(place, rejected);
  return since !== undefined && /^[\p{L}\p{N}_]*$/u.test(since.typed);
}

const firstLine = (text: string) => text.split("\n", 1)[0] ?? "";
const consistsOf = (text: string, characters: Set<string>) => [...text].every((each) => characters.has(each));
