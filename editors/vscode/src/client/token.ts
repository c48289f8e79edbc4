/**
 * A caller's token: where it comes from, when it is fetched again, and what follows a refusal.
 *
 * A refused token is fetched again once, at once. If it is the same or is refused, too, it is sent again only after a
 * wait of 15 s, which doubles up to 300 s, or when its source has another. Nothing here tells the token.
 */
import { execFile } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { status as Code } from "@grpc/grpc-js";
import { ServiceError } from "./errors";

const FIRST_WAIT_MS = 15_000;
const LAST_WAIT_MS = 300_000;
const COMMAND_LIMIT_MS = 10_000;
const MOST_BYTES = 16 * 1024;
/** For a command whose token names no time of its own. */
const TTL_MS = 300_000;
const MARGIN_MS = 60_000;
const MARGIN_SHARE = 0.2;

/** The server wants a token, or does not take the one that it got: a person has to act. */
export class TokenError extends ServiceError {
  constructor(message: string, retryAfterMs?: number) {
    super(message, Code.UNAUTHENTICATED, "", retryAfterMs);
  }
}

interface Source {
  /** In words; "" for no token. */
  where: string;
  /** What differs once the source has another token. */
  state(): string;
  fetch(): Promise<string>;
  /** Whether the token is fetched again when it is old, not only when the state differs. */
  expires: boolean;
}

export class Token {
  #value?: string;
  #state = "";
  #renewAtMs = Number.POSITIVE_INFINITY;
  #fetching?: Promise<void>;
  #refused?: string;
  /** Why it was refused. */
  #why = "";
  #numRefusals = 0;
  /** Why nothing is sent now. */
  #problem = "";
  #retryAtMs = 0;
  #waitMs = FIRST_WAIT_MS;

  constructor(
    private readonly source: Source,
    private readonly now: () => number = Date.now,
  ) {}

  static none(): Token {
    return new Token({ where: "", state: () => "", fetch: async () => "", expires: false });
  }

  /** Throws an Error if the text can't be sent. */
  static ofText(text: string, where: string): Token {
    const token = checked(text);
    return new Token({ where, state: () => "", fetch: async () => token, expires: false });
  }

  /** A file with a token alone. It is read again when it changes. */
  static ofFile(path: string): Token {
    const state = () => {
      const found = statSync(path, { throwIfNoEntry: false });
      return found ? `${found.mtimeMs} ${found.size} ${found.ino}` : "";
    };
    const fetch = async () => {
      const found = statSync(path);
      if (!found.isFile() || found.size > MOST_BYTES) throw new Error("it is no file of at most 16 KiB");
      return checked(readFileSync(path, "latin1"));
    };
    return new Token({ where: `the file ${path}`, state, fetch, expires: false });
  }

  /** A command that prints a token, without a shell. It is run again before the token expires. */
  static ofCommand(words: readonly string[], now: () => number = Date.now): Token {
    const [program = "", ...rest] = words;
    const where = `the command ${program}`; // an argument may be a secret
    return new Token({ where, state: () => "", fetch: () => output(program, rest), expires: true }, now);
  }

  get isGiven(): boolean {
    return this.source.where !== "";
  }

  /** For how long nothing is sent, in ms. */
  get waitLeftMs(): number {
    if (!this.#problem) return 0;
    if (this.source.state() !== this.#state) {
      this.#numRefusals = 0;
      this.#waitMs = FIRST_WAIT_MS;
      this.#problem = "";
      return 0;
    }
    const leftMs = Math.max(0, this.#retryAtMs - this.now());
    if (!leftMs) this.#problem = "";
    return leftMs;
  }

  /** The token, "" for none. Rejects with a TokenError if there is none to send. */
  async get(): Promise<string> {
    this.#throwIfWaiting();
    const isOld = this.source.state() !== this.#state || (this.source.expires && this.now() >= this.#renewAtMs);
    if (this.#value === undefined || isOld) {
      this.#fetching ??= this.#fetch().finally(() => {
        this.#fetching = undefined;
      });
      await this.#fetching;
    }
    this.#throwIfWaiting();
    return this.#value ?? "";
  }

  accepted(): void {
    this.#numRefusals = 0;
    this.#waitMs = FIRST_WAIT_MS;
  }

  /** A server refused the token. */
  refused(value: string, why: string): void {
    if (value !== this.#value) return;
    this.#value = undefined;
    this.#refused = value;
    this.#numRefusals += 1;
    this.#why = this.isGiven ? `the server refused the token of ${this.source.where}: ${why}` : why;
    if (this.#numRefusals > 1) this.#wait(this.#why);
  }

  async #fetch(): Promise<void> {
    const state = this.source.state();
    try {
      const value = await this.source.fetch();
      this.#state = state;
      if (this.#numRefusals === 1 && value === this.#refused) {
        this.#numRefusals = 2; // it is sent when the wait is over
        return this.#wait(this.#why);
      }
      this.#value = value;
      const lifeMs = (expiryMs(value) ?? 0) - this.now();
      // A token that seems to be expired is sent: this clock may be wrong.
      this.#renewAtMs = this.now() + (lifeMs > 0 ? lifeMs - Math.min(MARGIN_MS, MARGIN_SHARE * lifeMs) : TTL_MS);
    } catch (error) {
      this.#state = state;
      if (this.#value !== undefined) {
        this.#renewAtMs = this.now() + FIRST_WAIT_MS; // the last good one is used on
        return;
      }
      this.#wait(`there is no token to send: ${this.source.where}: ${error instanceof Error ? error.message : error}`);
    }
  }

  #wait(problem: string): void {
    this.#problem = problem;
    this.#retryAtMs = this.now() + this.#waitMs;
    this.#waitMs = Math.min(LAST_WAIT_MS, 2 * this.#waitMs);
  }

  #throwIfWaiting(): void {
    const leftMs = this.waitLeftMs;
    if (leftMs) throw new TokenError(this.#problem, leftMs);
  }
}

function checked(text: string): string {
  const token = text.trim();
  if (!token) throw new Error("token: it is empty");
  if (!/^[!-~]+$/.test(token)) throw new Error("token: expected ASCII characters without blanks");
  return token;
}

function output(program: string, words: string[]): Promise<string> {
  const options = {
    timeout: COMMAND_LIMIT_MS,
    maxBuffer: MOST_BYTES,
    killSignal: "SIGKILL",
    encoding: "latin1",
    windowsHide: true,
  } as const;
  return new Promise((resolve, reject) => {
    const child = execFile(program, words, options, (error, stdout) => {
      // Node's own message has the command with its arguments.
      if (error) return reject(new Error(whyFailed(error)));
      try {
        resolve(checked(stdout));
      } catch (problem) {
        reject(problem);
      }
    });
    child.stdin?.end();
    child.stdin?.on("error", () => {});
  });
}

function whyFailed(error: { killed?: boolean; code?: unknown }): string {
  if (error.code === "ERR_CHILD_PROCESS_STDIO_MAXBUFFER") return "it printed more than 16 KiB";
  if (error.killed) return "it did not end within 10 s";
  if (typeof error.code === "number") return `it ended with status ${error.code}; run it by hand to see why`;
  return `it can't be run (${error.code})`;
}

/** When a JWT expires, as it says itself; undefined for another token. */
function expiryMs(token: string): number | undefined {
  const parts = token.split(".");
  if (parts.length !== 3) return undefined;
  try {
    const { exp } = JSON.parse(Buffer.from(parts[1] ?? "", "base64url").toString());
    return Number.isFinite(exp) ? exp * 1000 : undefined;
  } catch {
    return undefined;
  }
}
