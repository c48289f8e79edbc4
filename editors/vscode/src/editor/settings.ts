/** The settings of the extension, read once for each change. */
import { readFileSync } from "node:fs";
import * as vscode from "vscode";
import { parseAddresses, type Tls } from "../client/endpoints";
import type { StreamSettings } from "../client/stream";
import { Token } from "../client/token";
import type { MultiLine } from "../completer";
import { patternsOf, type SendingRules } from "../policy/exclude";
import type { PolicySettings } from "../policy/settings";

export const SECTION = "completionServer";

export interface Settings {
  rules: SendingRules;
  policy: Partial<PolicySettings>;
  multiLine: MultiLine;
  sendsSnippets: boolean;
  asksNextEdits: boolean;
  runsUntrusted: boolean;
}

const get = <T>(key: string, otherwise: T): T => vscode.workspace.getConfiguration(SECTION).get<T>(key) ?? otherwise;

export function readSettings(): Settings {
  const delayMs = get<number | undefined>("delay", undefined);
  return {
    rules: {
      exclude: patternsOf(vscode.workspace.getConfiguration(SECTION).inspect("exclude")),
      languages: get<Record<string, boolean>>("languages", {}),
      outsideWorkspace: get("outsideWorkspace", false),
    },
    policy: delayMs === undefined ? {} : { followsRhythm: false, delayMinMs: delayMs },
    multiLine: get<MultiLine>("multiLine", "auto"),
    sendsSnippets: get("snippets", true),
    asksNextEdits: get("nextEdits", true),
    runsUntrusted: get("untrustedWorkspaces", false),
  };
}

/**
 * Where to connect and as whom; `secret` is the token that a person has set. Throws an Error that names the setting that
 * can't be used.
 */
export function readStreamSettings(secret: string | undefined): StreamSettings {
  return {
    addresses: parseAddresses(get("address", "127.0.0.1:50051")),
    tls: readTls(),
    caller: { user: get("user", ""), tenant: get("tenant", "") },
    token: readToken(secret),
  };
}

function readToken(secret: string | undefined): Token {
  const [command, file] = [get<string[]>("tokenCommand", []), get("tokenFile", "")];
  if (command.length > 0 && file) throw new Error("tokenCommand and tokenFile: give one of them");
  if (command.length > 0) return Token.ofCommand(command);
  if (file) return Token.ofFile(file);
  return secret ? Token.ofText(secret, `the command "Set Token"`) : Token.none();
}

function readTls(): Tls | undefined {
  const [ca, certificate, key] = [readPem("tls.ca"), readPem("tls.certificate"), readPem("tls.key")];
  if (!certificate !== !key) throw new Error("tls.certificate and tls.key must be given together");
  return get("tls.enabled", false) || ca || certificate ? { ca, certificate, key } : undefined;
}

function readPem(setting: string): Buffer | undefined {
  const path = get(setting, "");
  if (!path) return undefined;
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Error(`${setting}: ${error instanceof Error ? error.message : error}`);
  }
}
