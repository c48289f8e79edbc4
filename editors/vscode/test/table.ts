/** The table of cases, editors/policy_cases.json. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Text } from "../src/policy/messages";

export type Step = Record<string, any>;
export interface Case {
  name: string;
  settings?: Step;
  steps: Step[];
}

export const table = JSON.parse(readFileSync(join(__dirname, "../../../policy_cases.json"), "utf8"));

/** A text in which "|" is the cursor. */
export function textOf(marked: string, uri = "a.py"): Text {
  const [before = "", after = ""] = marked.split("|");
  return { uri, before, after };
}

/** Settings with the names of TypeScript. */
export const camel = (settings: Step = {}): Step =>
  Object.fromEntries(
    Object.entries(settings).map(([key, value]) => [key.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()), value]),
  );
