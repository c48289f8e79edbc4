/**
 * Snippets: text of recent places that a request sends along, ranked, within a budget. Pure.
 *
 * A chunk of lines is remembered when the user leaves a place. The choice for a request stays as long as it can,
 * because every change of it makes the server compute the prompt anew.
 */
import type { Text } from "./messages";
import { DEFAULT_SNIPPET_SETTINGS, type SnippetSettings } from "./settings";

const WORD = /[A-Za-z_][A-Za-z0-9_]+/g;

/** Text of another place, as in the contract; the score is the share of words in common with the text at the cursor. */
export interface Snippet {
  uri: string;
  text: string;
  score: number;
}

interface Chunk {
  uri: string;
  text: string;
  words: Set<string>;
}

/** The chunks of recent places; the oldest one is forgotten first. */
export class SnippetRing {
  readonly #settings: SnippetSettings;
  #chunks: Chunk[] = [];
  /** Counts the changes of the chunks. */
  #version = 0;
  #choice?: { uri: string; line: number; version: number; snippets: Snippet[] };

  constructor(settings: Partial<SnippetSettings> = {}) {
    this.#settings = { ...DEFAULT_SNIPPET_SETTINGS, ...settings };
  }

  /** Remember the lines around a place that the user leaves, in place of a chunk that is nearly the same. */
  leave({ uri, before, after }: Text): void {
    const { chunkLines, sameShare, numChunks } = this.#settings;
    const half = chunkLines >> 1;
    const text = [...linesOf(before).slice(-half), ...linesOf(after).slice(0, chunkLines - half)].join("");
    const words = wordsOf(text);
    if (words.size === 0) return;
    const kept = this.#chunks.filter((each) => each.uri !== uri || share(each.words, words) < sameShare);
    this.#chunks = [...kept, { uri, text, words }].slice(-numChunks);
    this.#version += 1;
  }

  /** Forget the chunks of a document, which was closed or may not be sent. */
  close(uri: string): void {
    const kept = this.#chunks.filter((each) => each.uri !== uri);
    if (kept.length === this.#chunks.length) return;
    this.#chunks = kept;
    this.#version += 1;
  }

  /** The snippets for a request, the best first: chunks of other documents with words in common. */
  choose(text: Text): Snippet[] {
    const line = text.before.split("\n").length;
    const choice = this.#choice;
    const isFresh = choice?.uri === text.uri && choice.version === this.#version;
    if (choice && isFresh && Math.abs(line - choice.line) < this.#settings.keepLines) return choice.snippets;
    const snippets = this.#best(text);
    this.#choice = { uri: text.uri, line, version: this.#version, snippets };
    return snippets;
  }

  #best(text: Text): Snippet[] {
    const words = wordsOf(linesOf(text.before).slice(-this.#settings.windowLines).join(""));
    const candidates = this.#chunks
      .filter((each) => each.uri !== text.uri)
      .map((each) => ({ uri: each.uri, text: each.text, score: share(words, each.words) }))
      .reverse() // the newest first among equals
      .sort((a, b) => b.score - a.score);
    let left = this.#settings.budgetChars;
    return candidates.filter((each) => {
      if (each.score < this.#settings.minScore || each.text.length > left) return false;
      left -= each.text.length;
      return true;
    });
  }
}

const linesOf = (text: string) => text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
const wordsOf = (text: string) => new Set(text.match(WORD));

/** The Jaccard index of two sets of words. */
function share(one: Set<string>, other: Set<string>): number {
  let common = 0;
  for (const each of one) if (other.has(each)) common += 1;
  const union = one.size + other.size - common;
  return union ? common / union : 0;
}
