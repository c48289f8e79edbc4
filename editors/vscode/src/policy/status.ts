/** What the status bar says. Pure. */

/** A usual time from a request to its text above this is called slow. */
const SLOW_MS = 800;
const NUM_ANSWERS = 8;

export type Connection =
  | { state: "connecting" }
  | { state: "connected"; address: string }
  | { state: "away"; why: string }
  /** The server wants a token, or another one. */
  | { state: "unknown"; why: string };

export interface StatusText {
  /** With a codicon. */
  text: string;
  tooltip: string;
  isWarning: boolean;
}

/** Follows the connection and the recent answers. */
export class Status {
  connection: Connection = { state: "connecting" };
  #answersMs: number[] = [];
  #problem = "";

  /** Take a whole answer's time. */
  answered(totalMs: number): void {
    this.#answersMs = [...this.#answersMs, totalMs].slice(-NUM_ANSWERS);
    this.#problem = "";
  }

  /** A request got no answer, such as "shed (overload)". */
  failed(why: string): void {
    this.#problem = why;
  }

  /** What to show for the document in front; `off` is why it gets no completions. */
  textFor(off: string | undefined): StatusText {
    if (off !== undefined) return item("$(circle-slash) Completions off", off);
    const { connection } = this;
    switch (connection.state) {
      case "connecting":
        return item("$(sync~spin) Completions", "connecting");
      case "away":
        return item("$(debug-disconnect) Completions away", connection.why, true);
      case "unknown":
        return item("$(key) Completions: sign in", connection.why, true);
      case "connected":
        return this.#connectedTo(connection.address);
    }
  }

  #connectedTo(address: string): StatusText {
    const where = `connected to ${address}`;
    if (this.#problem) return item("$(watch) Completions slow", `${where}, ${this.#problem}`);
    const usualMs = [...this.#answersMs].sort((a, b) => a - b)[this.#answersMs.length >> 1];
    if (usualMs === undefined) return item("$(sparkle) Completions", where);
    const text = usualMs > SLOW_MS ? "$(watch) Completions slow" : "$(sparkle) Completions";
    return item(text, `${where}, usually ${Math.round(usualMs)} ms`);
  }
}

const item = (text: string, tooltip: string, isWarning = false): StatusText => ({
  text,
  tooltip: `Completions: ${tooltip}`,
  isWarning,
});
