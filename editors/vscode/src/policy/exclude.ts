/** Which documents may be sent. Pure: paths and patterns go in. */

/** What a document is, as far as the rules need it. */
export interface DocumentInfo {
  scheme: string;
  /** Whether the scheme is that of a file system in which files can be changed. */
  isWritable: boolean;
  /** With slashes. */
  path: string;
  /** Path of the workspace's folder that it is in, if it is in one. */
  folder?: string;
  languageId: string;
  isInWorkspace: boolean;
}

export interface SendingRules {
  /** Patterns of files that are never sent, besides SECRETS and SECRET_WORDS. */
  exclude: readonly string[];
  /** Languages by id, "*" for all others. */
  languages: Readonly<Record<string, boolean>>;
  /** Whether files outside the folders of the workspace are sent. */
  outsideWorkspace: boolean;
}

/**
 * Patterns of files and folders whose text is never sent, whatever is set; these lists are the same as in
 * editors/policy_cases.json.
 */
// biome-ignore format: a line for each kind
export const SECRETS = [
  ".env", ".env.*", "*.env",
  "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.asc",
  "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
  ".ssh", ".gnupg", ".aws", ".kube", ".docker",
  ".netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd", ".git-credentials",
  "*.tfstate", "*.tfstate.*", "*.tfvars",
  "credentials", "credentials.*", "passwords", "passwords.*", "secrets", "secrets.*", ".secrets",
] as const;

/** Patterns of files whose text is never sent, unless they are source code: that deals with secrets and has none. */
export const SECRET_WORDS = ["*credential*", "*password*", "*secret*"] as const;
/** Extensions of source code. */
// biome-ignore format: as many as fit into a line
export const CODE = [
  "astro", "c", "cc", "cjs", "clj", "cljs", "cpp", "cs", "cshtml", "css", "cts", "cu", "cuh", "cxx", "dart",
  "elm", "erl", "ex", "exs", "fs", "fsx", "go", "gql", "graphql", "groovy", "h", "hh", "hpp", "hrl", "hs", "htm",
  "html", "hxx", "java", "jl", "js", "jsx", "kt", "kts", "less", "lua", "m", "mjs", "ml", "mli", "mm", "mts",
  "nim", "php", "pl", "pm", "proto", "py", "pyi", "r", "rb", "rs", "sass", "scala", "scss", "sol", "svelte",
  "swift", "ts", "tsx", "vb", "vue", "zig",
] as const;

/** Documents that a person edits and that are in no file system. */
const SCHEMES = new Set(["untitled", "vscode-notebook-cell"]);
/** VS Code's own settings and keys. */
const SETTINGS = "vscode-userdata";

/** Why a document is not sent, for the status bar; undefined if it is. */
export function reasonNotToSend(document: DocumentInfo, rules: SendingRules): string | undefined {
  const { scheme, path, languageId } = document;
  const isFile = document.isWritable && scheme !== SETTINGS;
  if (!isFile && !SCHEMES.has(scheme)) return "not a file";
  if (!(rules.languages[languageId] ?? rules.languages["*"] ?? true)) return `off for ${languageId}`;
  const secret = secretPattern(path, document.folder);
  if (secret !== undefined) return `excluded by ${secret}, as files with secrets are`;
  const pattern = rules.exclude.find((each) => matches(each, path));
  if (pattern !== undefined) return `excluded by ${pattern}`;
  if (!document.isInWorkspace && !rules.outsideWorkspace && scheme !== "untitled") return "outside the workspace";
  return undefined;
}

/**
 * The built-in pattern that matches a path, if one does. A name above the workspace's folder counts only if it begins with
 * a dot, as .ssh does: the others say nothing about the files.
 */
function secretPattern(path: string, folder = ""): string | undefined {
  const names = path.split("/");
  const root = folder.replace(/\/$/, "");
  const numAbove = path.startsWith(`${root}/`) ? root.split("/").length : 0;
  const counted = names.filter((name, at) => at >= numAbove || name.startsWith(".")).join("/");
  const file = names.at(-1) ?? "";
  const isCode = CODE.some((each) => file.toLowerCase().endsWith(`.${each}`));
  return (
    SECRETS.find((each) => matches(each, counted)) ??
    (isCode ? undefined : SECRET_WORDS.find((each) => matches(each, file)))
  );
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
