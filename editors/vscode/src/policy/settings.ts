/** The settings of the policy, with the defaults. Times are in milliseconds. */

export const DEFAULT_SETTINGS = {
  /** The server is fast if its usual time to the first text is at most so much of the usual time between keys. */
  fastShare: 0.6,
  /** The wait between a key and its request if the server is fast: the text can be there before the next key. */
  delayMinMs: 0,
  /** The wait if it is not, in usual times between keys: the text can be there only if the user pauses. */
  delayFactor: 1.0,
  /** The longest wait. */
  delayMaxMs: 400,
  /** The time between keys that is assumed of a user who has typed little. */
  gapMs: 170,
  /** A longer time between keys is a pause and no sample of the rhythm. */
  gapMaxMs: 1000,
  /** The usual time between keys is the median of so many. */
  numGaps: 16,
  /** The time from a request to its first text that is assumed before the first answer. */
  ttftMs: 100,
  /** The usual time to the first text is the median of so many. */
  numTtfts: 8,
  /** How long nothing is asked after a request that was shed or failed, if the server names no time. */
  shedMs: 1000,
  /** Answers that are remembered, at least 1. */
  numAnswers: 64,
  /** Places that are remembered as rejected; 0 remembers none. */
  numRejections: 16,
  /** Two places are the same if their documents are as long and so many characters on each side are equal. */
  contextChars: 2000,
  /** Whether an answer is still of use when a part of it was typed. */
  typesAlong: true,
  /** Whether the wait follows the user and the server. If not, it is `delayMinMs`. */
  followsRhythm: true,
  /** Whether a request is cancelled at the key that contradicts it. If not, the next request supersedes it. */
  cancels: true,
  /** Whether the next text is asked for at once after an acceptance. */
  prefetches: true,
  /** Whether nothing is asked in the middle of a line with text that no completion can join. */
  mindsLine: true,
};

export type PolicySettings = typeof DEFAULT_SETTINGS;

export const DEFAULT_SNIPPET_SETTINGS = {
  /** Places that are remembered. */
  numChunks: 16,
  /** Most lines of a place. */
  chunkLines: 48,
  /** A place replaces a remembered one if so much of their words is the same. */
  sameShare: 0.8,
  /** Characters of all snippets of a request. */
  budgetChars: 6000,
  /** Least share of common words with the text around the cursor. */
  minScore: 0.05,
  /** Lines before the cursor that snippets are compared with. */
  windowLines: 24,
  /** The choice stays until the cursor is so many lines away from where it was made, so that prompts stay alike. */
  keepLines: 24,
};

export type SnippetSettings = typeof DEFAULT_SNIPPET_SETTINGS;

/** When the next edit is asked for. */
export const DEFAULT_NEXT_EDIT_SETTINGS = {
  /** The time after a change, and after a completion, in which nothing must happen before an edit is asked for. */
  pauseMs: 300,
  /** How long no edit is asked for after a request that was shed or failed, if the server names no time. */
  shedMs: 1000,
  /** An answer is that of all cursors in the same text so many lines before and after its own. */
  nearLines: 8,
  /** Edits that are remembered as rejected; 0 remembers none. */
  numRejections: 16,
};

export type NextEditSettings = typeof DEFAULT_NEXT_EDIT_SETTINGS;

/** What edits of the user are kept and sent. */
export const DEFAULT_RECENT_EDIT_SETTINGS = {
  /** Edits that are remembered, at least 1. */
  numEdits: 8,
  /** A change belongs to the last edit if it comes no later, */
  mergeMs: 5000,
  /** with at most so many lines between them. */
  mergeLines: 4,
  /** Unchanged lines on each side. */
  contextLines: 3,
  /** Bytes of all diffs of a request. A larger edit alone is not kept. */
  budgetBytes: 8000,
};

export type RecentEditSettings = typeof DEFAULT_RECENT_EDIT_SETTINGS;
