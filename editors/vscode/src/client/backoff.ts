/** Waits before a reconnect, as the contract asks: random, so that all editors do not come back at once. */

const FIRST_BOUND_MS = 100;
const LAST_BOUND_MS = 5_000;

/** Each wait is drawn evenly from 0 to a bound that starts at 100 ms and doubles up to 5 s. */
export class Backoff {
  #boundMs = FIRST_BOUND_MS;

  constructor(private readonly random: () => number = Math.random) {}

  nextMs(): number {
    const waitMs = this.random() * this.#boundMs;
    this.#boundMs = Math.min(LAST_BOUND_MS, this.#boundMs * 2);
    return waitMs;
  }

  /** Start anew, after an answer. */
  reset(): void {
    this.#boundMs = FIRST_BOUND_MS;
  }
}
