/** What the status bar says. Pure. */

/** A usual time from a request to its text above this is called slow. */
const SLOW_MS = 800;
const NUM_ANSWERS = 8;

export type Connection = { state: "connecting" } | { state: "connected"; address: string } | { state: "away"; why: string };

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
  #shedWhy = "";

  /** Take a whole answer's time. */
  answered(totalMs: number): void {
    this.#answersMs = [...this.#answersMs, totalMs].slice(-NUM_ANSWERS);
    this.#shedWhy = "";
  }

  /** The server has no capacity for a request. */
  shed(why: string): void {
    this.#shedWhy = why;
  }

  /** What to show for the document in front; `off` is why it gets no completions. */
  textFor(off: string | undefined): StatusText {
    if (off !== undefined) return { text: "$(circle-slash) Completions off", tooltip: `Completions: ${off}`, isWarning: false };
    const { connection } = this;
    switch (connection.state) {
      case "connecting":
        return { text: "$(sync~spin) Completions", tooltip: "Completions: connecting", isWarning: false };
      case "away":
        return { text: "$(debug-disconnect) Completions away", tooltip: `Completions: ${connection.why}`, isWarning: true };
      case "connected": {
        const where = `Completions: connected to ${connection.address}`;
        if (this.#shedWhy) return { text: "$(watch) Completions slow", tooltip: `${where}, ${this.#shedWhy}`, isWarning: false };
        const usualMs = [...this.#answersMs].sort((a, b) => a - b)[this.#answersMs.length >> 1];
        const time = usualMs === undefined ? "" : `, usually ${Math.round(usualMs)} ms`;
        const isSlow = usualMs !== undefined && usualMs > SLOW_MS;
        return { text: isSlow ? "$(watch) Completions slow" : "$(sparkle) Completions", tooltip: where + time, isWarning: false };
      }
    }
  }
}
