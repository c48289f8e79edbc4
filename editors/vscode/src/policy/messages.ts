/** What the policy is told and its decisions. Times are milliseconds of any monotonic clock. */
import type { LineEdit } from "./lineEdits";

/** A document divided at the cursor: the whole of it, or always cut at the same place. Lines end with "\n". */
export interface Text {
  uri: string;
  before: string;
  after: string;
}

/** What changed a text. Typed: keys, also if the editor closed a bracket by itself. Undone: undo or redo. */
export type Change = "typed" | "pasted" | "deleted" | "undone" | "other";

export type Trigger = "automatic" | "explicit" | "prefetch";
export type Mode = "single_line" | "multi_line";
export type Extent = "whole" | "word" | "line";

export type FeedbackName = "shown" | "accepted" | "accepted_word" | "accepted_line" | "rejected";

export type Decision =
  /** Report feedback on a request, with the accepted characters in UTF-16 code units. */
  | { kind: "report"; request: number; feedback: FeedbackName; characters: number }
  /** Cancel a request; what still comes of it is ignored. */
  | { kind: "cancel"; request: number }
  /** Show nothing. */
  | { kind: "hide" }
  /** Show text at the cursor instead of what was shown, and replace closing brackets behind the cursor. */
  | { kind: "show"; request: number; text: string; replaced: number }
  /** Send a request for the present text. Numbers rise by one from 1. */
  | { kind: "ask"; request: number; trigger: Trigger; mode: Mode }
  /** Call `tick` at this time, instead of at any that was named before. */
  | { kind: "wait"; untilMs: number };

/** A decision on next edits. Their requests have other numbers than those of completions. */
export type EditDecision =
  | Extract<Decision, { kind: "report" | "cancel" | "hide" | "wait" }>
  /** Send a request for the next edit of the present text. */
  | { kind: "askEdit"; request: number }
  /** Show an edit of this version of the present text. It is never applied to another. */
  | { kind: "showEdit"; request: number; version: number; edit: LineEdit };
