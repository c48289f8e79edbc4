/** The messages of the page and the server; completion_server/http/playground/messages.py has the same in Python. */
import type { FeedbackName, Mode, Trigger } from "../../vscode/src/policy/messages";

export type PageMessage =
  | {
      type: "ask";
      number: number;
      trigger: Trigger;
      mode: Mode;
      uri: string;
      language: string;
      prefix: string;
      suffix: string;
    }
  | { type: "cancel"; number: number }
  | { type: "report"; number: number; kind: FeedbackName; characters: number }
  | { type: "set_k"; k: number | null }
  | { type: "simulate"; on: boolean }
  | { type: "token"; token: string };

/** The end of a request. Without times and tokens it was refused. */
export interface End {
  type: "end";
  number: number;
  text: string;
  reason: string;
  shed_reason?: string;
  retry_after_ms: number | null;
  error: string;
  queue_ms?: number;
  tokenise_ms?: number;
  prefill_ms?: number;
  decode_ms?: number;
  total_ms?: number;
  prompt_tokens?: number;
  cached_tokens?: number;
  completion_tokens?: number;
  cache?: string;
}

/** The state of the server. Counts are since its start. */
export interface Figures {
  type: "figures";
  sessions: number;
  live: number;
  queued: number;
  running: number;
  slots: number;
  answered: number;
  superseded: number;
  cancelled: number;
  shed: number;
  late: number;
  failed: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  ttft_ms: number | null;
  k: number;
  k_max: number;
  k_mode: string;
  k_locked: string;
  acceptance: number | null;
  editors_left_s: number;
  editors_locked: string;
  editors_failure: string;
}

export interface About {
  type: "about";
  model: string;
  draft_model: string;
  version: string;
}

export type ServerMessage =
  | { type: "text"; number: number; text: string }
  | End
  | Figures
  | About
  | { type: "note"; text: string }
  /** The server needs a token. With a reason the one that it has is of no use any more. */
  | { type: "sign_in"; reason: string };
