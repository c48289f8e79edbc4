/** Which documents may be sent. Pure: paths and patterns go in. */

/** What a document is, as far as the rules need it. */
export interface DocumentInfo {
  scheme: string;
  /** With slashes. */
  path: string;
  languageId: string;
  isInWorkspace: boolean;
}

export interface SendingRules {
  /** Patterns of files that are never sent. */
  exclude: readonly string[];
  /** Languages by id, "*" for all others. */
  languages: Readonly<Record<string, boolean>>;
  /** Whether files outside the folders of the workspace are sent. */
  outsideWorkspace: boolean;
}

/** Documents that a person edits. Others are output, differences, settings. */
const SCHEMES = new Set(["file", "untitled", "vscode-remote", "vscode-notebook-cell", "vscode-vfs"]);

/** Why a document is not sent, for the status bar; undefined if it is. */
export function reasonNotToSend(document: DocumentInfo, rules: SendingRules): string | undefined {
  if (!SCHEMES.has(document.scheme)) return "not a file";
  if (!(rules.languages[document.languageId] ?? rules.languages["*"] ?? true)) return `off for ${document.languageId}`;
  const pattern = rules.exclude.find((each) => matches(each, document.path));
  if (pattern !== undefined) return `excluded by ${pattern}`;
  if (!document.isInWorkspace && !rules.outsideWorkspace && document.scheme !== "untitled") {
    return "outside the workspace";
  }
  return undefined;
}

/**
 * Whether a path matches a pattern, in upper or lower case: `*` and `?` within a name, `**` over folders, `{a,b}`. A
 * pattern without a slash matches the name of a file or of any folder above it.
 */
export function matches(pattern: string, path: string): boolean {
  const body = pattern.includes("/") ? regexOf(pattern.replace(/^\.?\//, "")) : `${regexOf(pattern)}(/.*)?`;
  return new RegExp(`(^|/)${body}$`, "i").test(path);
}

const WILDCARDS: Record<string, string> = { "**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]" };

function regexOf(glob: string): string {
  const hasGroups = /^[^{}]*(\{[^{}]*\}[^{}]*)+$/.test(glob);
  const groups: Record<string, string> = hasGroups ? { "{": "(", "}": ")", ",": "|" } : {};
  return glob.replace(/\*\*\/?|\W/g, (token) => WILDCARDS[token] ?? groups[token] ?? `\\${token}`);
}
