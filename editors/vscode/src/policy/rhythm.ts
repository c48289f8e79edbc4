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

  /** The wait between a key and its request: none if the text can be there before the next key. */
  get delayMs(): number {
    const { followsRhythm, fastShare, delayFactor, delayMinMs, delayMaxMs } = this.settings;
    const gapMs = median(this.#gapsMs);
    if (!followsRhythm || median(this.#ttftsMs) <= fastShare * gapMs) return delayMinMs;
    return Math.min(delayMaxMs, Math.max(delayMinMs, delayFactor * gapMs));
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
}
