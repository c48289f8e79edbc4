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
  /** Patterns of files that are never sent, besides SECRETS. */
  exclude: readonly string[];
  /** Languages by id, "*" for all others. */
  languages: Readonly<Record<string, boolean>>;
  /** Whether files outside the folders of the workspace are sent. */
  outsideWorkspace: boolean;
}

/** Patterns of files that are never sent, whatever is set; the same as in editors/policy_cases.json. */
// biome-ignore format: a line for each kind
export const SECRETS = [
  ".env", ".env.*", "*.env",
  "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.asc",
  "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
  ".ssh", ".gnupg", ".aws", ".kube", ".docker",
  ".netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd", ".git-credentials",
  "*credential*", "*password*", "*secret*",
  "*.tfstate", "*.tfstate.*", "*.tfvars",
] as const;

/** Documents that a person edits. Others are output, differences, settings. */
const SCHEMES = new Set(["file", "untitled", "vscode-remote", "vscode-notebook-cell", "vscode-vfs"]);

/** Why a document is not sent, for the status bar; undefined if it is. */
export function reasonNotToSend(document: DocumentInfo, rules: SendingRules): string | undefined {
  if (!SCHEMES.has(document.scheme)) return "not a file";
  if (!(rules.languages[document.languageId] ?? rules.languages["*"] ?? true)) return `off for ${document.languageId}`;
  const pattern = [...SECRETS, ...rules.exclude].find((each) => matches(each, document.path));
  if (pattern !== undefined) return `excluded by ${pattern}`;
  if (!document.isInWorkspace && !rules.outsideWorkspace && document.scheme !== "untitled") {
    return "outside the workspace";
  }
  return undefined;
}

/**
 * The patterns that the user and the workspace set. VS Code's own value of a list is the workspace's alone, which could
 * so take the user's away. Settings may hold anything.
 */
export function patternsOf(set: { globalValue?: unknown; workspaceValue?: unknown } | undefined): string[] {
  const values = [set?.globalValue, set?.workspaceValue].flat();
  return values.filter((each): each is string => typeof each === "string");
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
