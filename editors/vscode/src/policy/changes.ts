/** What a change of a document means: how it was made, and whether it accepts a part of the shown text. Pure. */
import type { Change, Extent } from "./messages";

/** A replaced range; the texts have "\n" at the ends of lines. */
export interface Replacement {
  numDeleted: number;
  inserted: string;
}

/** One key, or a key and the bracket that the editor closed, or a new line and its indentation. */
const KEY = /^([\s\S]|\(\)|\[\]|\{\}|<>|""|''|``|\n[ \t]*(\n[ \t]*)?)$/u;

export function changeOf(replacements: readonly Replacement[], isUndo: boolean): Change {
  if (isUndo) return "undone";
  const [only] = replacements;
  if (!only || replacements.length > 1) return "other"; // several cursors, a formatter
  if (only.inserted === "") return "deleted";
  return KEY.test(only.inserted) ? "typed" : "pasted";
}

/**
 * How much of the shown text a change at the cursor accepted: all, the first word or the first line. VS Code tells
 * extensions of all alone, by a command after the change; but no key inserts more of the shown text than `KEY` says.
 */
export function acceptedPart(shown: string | undefined, replacements: readonly Replacement[]): Extent | undefined {
  const inserted = replacements.length === 1 ? (replacements[0]?.inserted ?? "") : "";
  if (shown === undefined || !inserted || KEY.test(inserted) || !shown.startsWith(inserted)) return undefined;
  if (inserted === shown) return "whole";
  const line = shown.split("\n", 1)[0];
  return inserted === line || inserted.includes("\n") ? "line" : "word";
}
