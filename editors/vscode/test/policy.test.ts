/** The table of cases that every implementation of the policy passes; editors/policy_cases.md explains its form. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Change, Decision, Extent } from "../src/policy/messages";
import { EditingPolicy } from "../src/policy/policy";
import { DEFAULT_SETTINGS, DEFAULT_SNIPPET_SETTINGS } from "../src/policy/settings";
import { SnippetRing } from "../src/policy/snippets";
import { type Case, camel, type Step, table, textOf } from "./table";

const CHANGES: Change[] = ["typed", "pasted", "deleted", "undone", "other"];

function decide(policy: EditingPolicy, step: Step): Decision[] {
  const { at, uri } = step;
  const change = CHANGES.find((each) => each in step);
  if (change) return policy.changed(textOf(step[change], uri), change, at);
  if ("moved" in step) return policy.moved(textOf(step.moved, uri), at);
  if ("explicit" in step) return policy.explicit(textOf(step.explicit, uri), at);
  if ("accepted" in step)
    return policy.accepted(step.request, textOf(step.accepted, uri), step.extent as Extent, step.inserted, at);
  if ("shown" in step) return policy.shown(step.shown, at);
  if ("received" in step) return policy.received(step.received, step.text, at);
  if ("ended" in step) {
    const last = policy.received(step.ended, step.text ?? "", at);
    return [...last, ...policy.ended(step.ended, step.reason, at, step.retry_after_ms)];
  }
  for (const name of ["rejected", "tick", "away", "back", "left"] as const) if (name in step) return policy[name](at);
  throw new Error(`unknown event in ${JSON.stringify(step)}`);
}

/** A decision in the form of the table. */
function row(decision: Decision): Step {
  switch (decision.kind) {
    case "report": {
      const { feedback, request, characters } = decision;
      return { report: feedback, request, ...(characters ? { characters } : {}) };
    }
    case "cancel":
      return { cancel: decision.request };
    case "hide":
      return { hide: true };
    case "show": {
      const { text, request, replaced } = decision;
      return { show: text, request, ...(replaced ? { replaced } : {}) };
    }
    case "ask":
      return { ask: decision.request, trigger: decision.trigger, mode: decision.mode };
    case "wait":
      return { wait_until: decision.untilMs };
  }
}

for (const { name, settings, steps } of table.cases as Case[]) {
  test(name, () => {
    const policy = new EditingPolicy(camel({ ...table.settings, ...settings }));
    for (const step of steps)
      assert.deepEqual(decide(policy, step).map(row), step.then, `after ${JSON.stringify(step)}`);
  });
}

for (const { name, settings, steps } of table.snippet_cases as Case[]) {
  test(`snippets: ${name}`, () => {
    const ring = new SnippetRing(camel({ ...table.snippet_settings, ...settings }));
    for (const step of steps) {
      if ("leave" in step) ring.leave(textOf(step.leave, step.uri));
      if ("close" in step) ring.close(step.close);
      if ("choose" in step)
        assert.deepEqual(
          ring.choose(textOf(step.choose, step.uri)).map(({ uri }) => uri),
          step.then,
        );
    }
  });
}

test("the table has the default settings", () => {
  assert.deepEqual(camel(table.defaults), DEFAULT_SETTINGS);
  assert.deepEqual(camel(table.snippet_defaults), DEFAULT_SNIPPET_SETTINGS);
});
