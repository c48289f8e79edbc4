/** Edits that may be shown, and the versions of documents that they are for. Pure. */
import { fitted, type LineEdit } from "./lineEdits";
import { Reports } from "./reports";

/** A version of a document, and the cursor's line in it. */
export interface EditPlace {
  uri: string;
  version: number;
  line: number;
}

export function isSameText(one: EditPlace | undefined, other: EditPlace | undefined): boolean {
  return one !== undefined && one.uri === other?.uri && one.version === other.version;
}

/** An open request. */
export interface Asked {
  request: number;
  place: EditPlace;
  /** The document's. */
  lines: readonly string[];
}

/** An edit that is or was shown. */
export interface EditOffer {
  request: number;
  place: EditPlace;
  edit: LineEdit;
  /** New characters, at most those of the answer. */
  characters: number;
  /** What makes it the same edit as another. */
  content: string;
  reports: Reports;
}

/** The edit of an answer, whose lines are counted from the cursor's; undefined if it changes nothing. */
export function offerOf({ request, place, lines }: Asked, answer: LineEdit): EditOffer | undefined {
  const edit = fitted(lines, { ...answer, first: place.line + answer.first });
  if (!edit) return undefined;
  const old = lines.slice(edit.first, edit.first + edit.numLines).join("");
  const characters = Math.min(edit.text.length, answer.text.length);
  const content = JSON.stringify([place.uri, old, edit.text]);
  return { request, place, edit, characters, content, reports: new Reports(request) };
}
