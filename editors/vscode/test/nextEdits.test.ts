/** The cases of next edits that every implementation of the policy passes; editors/policy_cases.md explains their form. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Change, EditDecision, Text } from "../src/policy/messages";
import { NextEditPolicy } from "../src/policy/nextEdits";
import { RecentEdits } from "../src/policy/recentEdits";
import { DEFAULT_NEXT_EDIT_SETTINGS, DEFAULT_RECENT_EDIT_SETTINGS } from "../src/policy/settings";
import { type Case, camel, type Step, table, textOf } from "./table";

const CHANGES: Change[] = ["typed", "pasted", "deleted", "undone", "other"];

function decide(policy: NextEditPolicy, step: Step): EditDecision[] {
  const { at, uri, version } = step;
  const text = (marked: string): Text => textOf(marked, uri);
  const change = CHANGES.find((each) => each in step);
  if (change) return policy.changed(text(step[change]), version, change, at);
  if ("moved" in step) return policy.moved(text(step.moved), version, at);
  if ("wanted" in step) return policy.wanted(text(step.wanted), version, at);
  if ("accepted" in step) return policy.accepted(step.request, text(step.accepted), version, at);
  if ("shown" in step) return policy.shown(step.shown, at);
  if ("busy" in step) return policy.busy(step.busy, at);
  if ("ended" in step) {
    const [of, first, numLines, added] = step.edit ?? [];
    const edit = step.edit && { first, numLines, text: added };
    const end = { reason: step.reason, edit, version: of, retryAfterMs: step.retry_after_ms };
    return policy.ended(step.ended, end, at);
  }
  for (const name of ["rejected", "tick", "away", "back", "left"] as const) if (name in step) return policy[name](at);
  throw new Error(`unknown event in ${JSON.stringify(step)}`);
}

/** A decision in the form of the table. */
function row(decision: EditDecision): Step {
  switch (decision.kind) {
    case "report": {
      const { feedback, request, characters } = decision;
      return { report: feedback, request, ...(characters ? { characters } : {}) };
    }
    case "cancel":
      return { cancel: decision.request };
    case "hide":
      return { hide: true };
    case "showEdit": {
      const { request, version, edit } = decision;
      return { show: edit.text, request, version, lines: [edit.first, edit.numLines] };
    }
    case "askEdit":
      return { ask: decision.request };
    case "wait":
      return { wait_until: decision.untilMs };
  }
}

for (const { name, settings, steps } of table.next_edit_cases as Case[]) {
  test(`next edits: ${name}`, () => {
    const policy = new NextEditPolicy(camel({ ...table.next_edit_settings, ...settings }));
    for (const step of steps)
      assert.deepEqual(decide(policy, step).map(row), step.then, `after ${JSON.stringify(step)}`);
  });
}

for (const { name, settings, steps } of table.recent_edit_cases as Case[]) {
  test(`recent edits: ${name}`, () => {
    const edits = new RecentEdits(camel({ ...table.recent_edit_settings, ...settings }));
    for (const step of steps) {
      if ("update" in step) edits.update(step.uri ?? "a.py", step.update, step.at);
      if ("forget" in step) edits.forget(step.forget);
      if ("choose" in step)
        assert.deepEqual(
          edits.choose().map(({ uri, diff }) => [uri, diff]),
          step.then,
        );
    }
  });
}

test("the table has the default settings of edits", () => {
  assert.deepEqual(camel(table.next_edit_defaults), DEFAULT_NEXT_EDIT_SETTINGS);
  assert.deepEqual(camel(table.recent_edit_defaults), DEFAULT_RECENT_EDIT_SETTINGS);
});
