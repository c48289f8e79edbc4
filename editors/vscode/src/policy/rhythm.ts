/** How long to wait after a key: what is usual of the user and of the server. */
import type { PolicySettings } from "./settings";

/** The user's usual time between keys and the server's usual time to the first text. */
export class Rhythm {
  #gapsMs: number[];
  #ttftsMs: number[];
  #keyMs?: number;

  constructor(private readonly settings: PolicySettings) {
    this.#gapsMs = [settings.gapMs];
    this.#ttftsMs = [settings.ttftMs];
  }

  /** Take a key. */
  typed(atMs: number): void {
    const gapMs = this.#keyMs === undefined ? this.settings.gapMaxMs : atMs - this.#keyMs;
    if (gapMs < this.settings.gapMaxMs) this.#gapsMs = [...this.#gapsMs, gapMs].slice(-this.settings.numGaps);
    this.#keyMs = atMs;
  }

  /** Take the time from a request to its first text. */
  answered(ttftMs: number): void {
    this.#ttftsMs = [...this.#ttftsMs, ttftMs].slice(-this.settings.numTtfts);
  }

  /** The wait between a key and its request: until the next key should have come, less the server's time. */
  get delayMs(): number {
    const { followsRhythm, delayFactor, delayMinMs, delayMaxMs } = this.settings;
    if (!followsRhythm) return delayMinMs;
    const dueMs = delayFactor * median(this.#gapsMs) - median(this.#ttftsMs);
    return Math.min(delayMaxMs, Math.max(delayMinMs, dueMs));
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
}
