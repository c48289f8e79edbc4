/** The events that the policy takes and its decisions. Times are milliseconds of any monotonic clock. */

/** A document divided at the cursor, with "\n" at the ends of lines. It may be cut, but always at the same places. */
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

export type Event =
  /** The document changed. An acceptance is no change; if it is reported as one, `accepted` may follow. */
  | { kind: "changed"; text: Text; change: Change }
  /** The cursor moved, or another document came to the front. */
  | { kind: "moved"; text: Text }
  /** The user asked for a completion. */
  | { kind: "explicit"; text: Text }
  /** The user accepted the shown text or the first part of it; `text` is the document after it. */
  | { kind: "accepted"; text: Text; extent: Extent; inserted: string }
  /** The user dismissed the shown text (Esc). */
  | { kind: "rejected" }
  /** The editor has drawn the text of a request. */
  | { kind: "shown"; request: number }
  /** Text of a request came. */
  | { kind: "answered"; request: number; text: string }
  /** A request ended, for a finish reason in lower case such as "stop"; "error" also for a lost connection. */
  | { kind: "ended"; request: number; reason: string; text?: string; retryAfterMs?: number }
  /** Time passed; due at the time of the last `wait`. */
  | { kind: "tick" }
  /** The connection was lost: open requests have no answer. */
  | { kind: "away" }
  | { kind: "back" }
  /** The editor lost the focus, or completions were switched off. */
  | { kind: "left" };

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
  /** Send a request for the present text. Numbers rise by one. */
  | { kind: "ask"; request: number; trigger: Trigger; mode: Mode }
  /** Send a `tick` at this time, instead of any that was asked for before. */
  | { kind: "wait"; untilMs: number };
