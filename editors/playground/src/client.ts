/** What the page asks the server over HTTP: completions as OpenAI's clients do, feedback as Tabby's do, and its figures. */
import type { FeedbackName, Mode } from "../../vscode/src/policy/messages";

const POLL_MS = 500;
const MAX_WAIT_MS = 10_000;
const ANSWERS_WITHIN_MS = 10_000;
/** The server refuses the token, or needs one: to ask again without another one would be of no use. */
const REFUSED: readonly number[] = [401, 403];
/** Tabby's names of reactions. */
const EVENTS = {
  shown: "view",
  accepted: "select",
  accepted_word: "select",
  accepted_line: "select",
  rejected: "dismiss",
};

export interface Ask {
  request: number;
  mode: Mode;
  prefix: string;
  suffix: string;
}

export interface Timings {
  queue_ms: number;
  tokenise_ms: number;
  prefill_ms: number;
  decode_ms: number;
  total_ms: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** The end of a request. One that was refused, superseded or cancelled has neither times nor tokens. */
export interface End {
  request: number;
  reason: string;
  error: string;
  retryAfterMs?: number;
  timings?: Timings;
  usage?: Usage;
}

/** The state of the server. Counts are since its start. */
export interface Status {
  model: string;
  draft_model: string;
  version: string;
  sessions: number;
  live: number;
  queued: number;
  running: number;
  slots: number;
  answered: number;
  superseded: number;
  cancelled: number;
  shed: number;
  prompt_tokens: number;
  cached_tokens: number;
  ttft_ms: number | null;
  k: number;
  k_max: number;
  k_mode: string;
  k_locked: string;
  acceptance: number | null;
}

/** An event of a streamed answer. */
interface Chunk {
  id?: string;
  choices?: { text: string; finish_reason: string | null }[];
  usage?: Usage;
  timings?: Timings;
  error?: { message: string };
}

export interface ClientHooks {
  /** Return the token of the user, if there is one. */
  token(): string | undefined;
  onText(request: number, text: string): void;
  onEnd(end: End): void;
  /** Return the document's path and the id of its language. */
  document(): { filepath: string; language: string };
  onStatus(status: Status): void;
  /** The server needs a token; `why` says why it does not take the last one, if there was one. */
  onSignIn(why: string): void;
  /** The server can't be reached, or serves nobody now; `why` is its own reason, if it gave one. */
  onAway(why: string): void;
  /** An action was refused. */
  onNote(text: string): void;
}

export class Client {
  readonly #open = new Map<number, AbortController>();
  /** The server's ids of answers. */
  readonly #ids = new Map<number, string>();
  #newest = 0;
  #timer?: ReturnType<typeof setTimeout>;
  #waitMs = POLL_MS;

  constructor(private readonly hooks: ClientHooks) {}

  /** Follow the state of the server from now on, with the present token. */
  async follow(): Promise<void> {
    clearTimeout(this.#timer);
    const hadToken = this.hooks.token() !== undefined;
    try {
      const answer = await this.#fetch("/admin/status", undefined, AbortSignal.timeout(ANSWERS_WITHIN_MS));
      if (REFUSED.includes(answer.status)) {
        this.#leave("not signed in");
        return this.hooks.onSignIn(hadToken ? await messageOf(answer) : "");
      }
      if (!answer.ok) throw new Error(await messageOf(answer));
      this.hooks.onStatus((await answer.json()) as Status);
      this.#waitMs = POLL_MS;
    } catch (error) {
      this.#leave(error instanceof TypeError ? "" : (error as Error).message); // a TypeError: no connection
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.follow(), this.#waitMs);
  }

  #leave(why: string): void {
    for (const each of this.#open.values()) each.abort();
    this.hooks.onAway(why);
  }

  async ask({ request, mode, prefix, suffix }: Ask): Promise<void> {
    const controller = new AbortController();
    this.#open.set(request, controller);
    this.#newest = request;
    const end: End = { request, reason: "error", error: "" };
    try {
      const stop = mode === "single_line" ? ["\n"] : [];
      await this.#answer({ prompt: prefix, suffix, ...this.hooks.document(), stop }, controller.signal, end);
    } catch (error) {
      if (controller.signal.aborted) end.reason = "cancelled";
      else if (this.#newest > request) end.reason = "superseded";
      else end.error = (error as Error).message;
    }
    this.#open.delete(request);
    this.hooks.onEnd(end);
  }

  /** End a request; its connection is closed. */
  cancel(request: number): void {
    this.#open.get(request)?.abort();
  }

  async report(request: number, feedback: FeedbackName, characters: number): Promise<void> {
    const [id, extent] = [this.#ids.get(request), feedback.split("_")[1]];
    const event = { type: EVENTS[feedback], completion_id: id, choice_index: 0, accepted_characters: characters };
    if (id) await this.#fetch(`/v1/events${extent ? `?select_kind=${extent}` : ""}`, event).catch(() => undefined);
  }

  /** Set K; null lets the server choose. */
  async setK(k: number | null): Promise<void> {
    try {
      const answer = await this.#fetch("/admin/speculation", { k });
      if (answer.ok) this.hooks.onStatus((await answer.json()) as Status);
      else this.hooks.onNote(await messageOf(answer));
    } catch (error) {
      this.hooks.onNote((error as Error).message);
    }
  }

  /** Pass on the parts of a streamed answer, and fill its end; throws if it is not whole. */
  async #answer(body: object, signal: AbortSignal, end: End): Promise<void> {
    const options = { stream: true, stream_options: { include_usage: true, include_timings: true } };
    const answer = await this.#fetch("/v1/completions", { ...body, ...options }, signal);
    const retryAfter = answer.headers.get("retry-after");
    if (retryAfter) end.retryAfterMs = 1000 * Number(retryAfter);
    if (!answer.ok || !answer.body) throw new Error(await messageOf(answer));
    for await (const { id, choices, usage, timings, error } of chunksOf(answer.body)) {
      if (error) throw new Error(error.message);
      if (id) this.#ids.set(end.request, id);
      for (const { text, finish_reason } of choices ?? []) {
        if (text) this.hooks.onText(end.request, text);
        if (finish_reason) end.reason = answer.headers.get("x-finish-reason") ?? finish_reason;
      }
      if (usage) Object.assign(end, { usage, timings });
    }
  }

  #fetch(path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const token = this.hooks.token();
    const headers = token === undefined ? undefined : { authorization: `Bearer ${token}` };
    const method = body ? "POST" : "GET";
    return fetch(path, { method, body: body && JSON.stringify(body), headers, signal, credentials: "omit" });
  }
}

/** Yield the events of a stream until its last one. */
async function* chunksOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Chunk> {
  const [reader, decoder] = [body.getReader(), new TextDecoder()];
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = events.pop() ?? "";
      for (const event of events) {
        const data = event.slice("data: ".length);
        if (data !== "[DONE]") yield JSON.parse(data) as Chunk;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined); // a stream that was broken off
  }
}

/** Return the server's words about an error. */
async function messageOf(answer: Response): Promise<string> {
  const body = (await answer.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
  return body?.error?.message ?? `HTTP status ${answer.status}`;
}
