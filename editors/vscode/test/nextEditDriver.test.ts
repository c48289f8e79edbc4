/** Next edits with a session of the test's own, and the pure rules of how they are sent and drawn. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { status as Code } from "@grpc/grpc-js";
import { type Edit, End, FeedbackKind, FinishReason, Mode, type ReportFeedbackRequest } from "completion-server-stubs";
import { ServiceError } from "../src/client/errors";
import type { Answer, Question } from "../src/client/session";
import { NextEdits, type ShownEdit } from "../src/nextEdits";
import { clipLines } from "../src/policy/clip";
import { diffOf, previewOf } from "../src/policy/preview";
import { until } from "./support";
import { textOf } from "./table";

interface Asked {
  question: Question;
  signal: AbortSignal;
  end: (edit?: Edit) => void;
  fail: (error: ServiceError) => void;
}

let asked: Asked[];
let reports: Partial<ReportFeedbackRequest>[];
let shown: (ShownEdit | undefined)[];
let edits: NextEdits;

const session = {
  complete(question: Question, _timeoutMs: number, signal = new AbortController().signal) {
    const sequence = asked.length + 100;
    return new Promise<Answer>((resolve) => {
      const answer = { sequence, text: "", totalMs: 1 };
      const end = (edit?: Edit) =>
        resolve({ ...answer, end: End.fromPartial({ finishReason: FinishReason.STOP, edit }) });
      const fail = (error: ServiceError) => resolve({ ...answer, error });
      signal.addEventListener("abort", () => resolve(answer));
      asked.push({ question, signal, end, fail });
    });
  },
  report: (feedback: Partial<ReportFeedbackRequest>) => void reports.push(feedback),
};
const EDIT: Edit = { documentVersion: 2, firstLine: 1, lineCount: 1, text: "new\n" };

beforeEach(() => {
  [asked, reports, shown] = [[], [], []];
  edits = new NextEdits({
    session: () => session,
    describe: () => ({ languageId: "python" }),
    recentEdits: () => [{ uri: "b.py", diff: "@@ -1,1 +1,1 @@\n-a\n+b\n" }],
    onShow: (each) => void shown.push(each),
    onAnswer: () => {},
  });
});
afterEach(() => edits.dispose());

async function ask(marked: string, version: number): Promise<Asked> {
  const number = asked.length;
  edits.changed(textOf(marked), version, "typed");
  await until("the request", () => asked.length > number);
  return asked[number]!;
}

test("an edit is asked for with what was changed, shown with its version and reported by the session's number", async () => {
  const { question, end } = await ask("a|\nb\nc\n", 2);
  assert.deepEqual([question.prefix, question.suffix, question.mode], ["a", "\nb\nc\n", Mode.NEXT_EDIT]);
  assert.deepEqual(question.nextEdit, {
    documentVersion: 2,
    recentEdits: [{ documentUri: "b.py", diff: "@@ -1,1 +1,1 @@\n-a\n+b\n" }],
  });
  end(EDIT);
  await until("the edit", () => shown.length === 1);
  assert.deepEqual([shown[0]?.uri, shown[0]?.version], ["a.py", 2]);
  assert.deepEqual(shown[0]?.edit, { first: 1, numLines: 1, text: "new\n" });
  edits.drawn(1);
  edits.changed(textOf("a|\nnew\nc\n"), 3, "other");
  assert.deepEqual(shown[1], undefined);
  edits.accepted(1, textOf("a\nnew|\nc\n"), 3);
  assert.equal(asked.length, 2, "the next edit was not asked for at once");
  assert.deepEqual(reports, [
    { sequence: 100, kind: FeedbackKind.SHOWN, acceptedCharacters: 0 },
    { sequence: 100, kind: FeedbackKind.ACCEPTED, acceptedCharacters: 4 },
  ]);
});

test("a change aborts the request, whose answer is not shown", async () => {
  const { signal, end } = await ask("a|\nb\n", 2);
  edits.changed(textOf("ab|\nb\n"), 3, "other");
  assert.equal(signal.aborted, true);
  end(EDIT);
  await new Promise(setImmediate);
  assert.deepEqual(shown, []);
});

test("nothing is asked while a completion is shown or asked, and at once after an accepted one", async () => {
  edits.busy(true);
  edits.changed(textOf("ab|\nb\n"), 3, "pasted");
  edits.completionAccepted();
  assert.equal(asked.length, 0);
  edits.busy(false);
  assert.equal(asked.length, 1);
});

test("a server that writes no edits, or does not know of them, is asked once for each connection", async () => {
  for (const error of [
    new ServiceError("no", Code.FAILED_PRECONDITION, "NO_NEXT_EDITS"),
    new ServiceError("what mode?", Code.INVALID_ARGUMENT, "", undefined, ["mode"]),
  ]) {
    const { fail } = await ask(`a${error.code}|\n`, error.code);
    fail(error);
    await new Promise(setImmediate);
    const before = asked.length;
    edits.changed(textOf("c|\n"), 100 + error.code, "typed");
    edits.completionAccepted();
    assert.equal(asked.length, before);
    edits.away();
    edits.back();
    edits.completionAccepted();
    assert.equal(asked.length, before + 1);
  }
});

test("a request with another field that is refused is an error of its own", async () => {
  const { fail } = await ask("a|\n", 2);
  fail(new ServiceError("too large", Code.INVALID_ARGUMENT, "", 0, ["prefix"]));
  await new Promise(setImmediate);
  edits.changed(textOf("ab|\n"), 3, "other");
  edits.completionAccepted();
  assert.equal(asked.length, 2);
});

test("lines are sent whole or not at all", () => {
  const line = `${"b".repeat(99)}\n`;
  const clipped = clipLines(line.repeat(2000), line.repeat(2000))!;
  for (const text of [clipped.prefix, clipped.suffix]) {
    assert.equal(text.length % line.length, 0);
    assert.ok(text.startsWith("b") && text.endsWith("\n"));
  }
  assert.deepEqual(clipLines("a\nb", "c\nd"), { prefix: "a\nb", suffix: "c\nd" });
  assert.equal(clipLines("b".repeat(100_000), ""), undefined);
  assert.equal(clipLines("", "b".repeat(100_000)), undefined);
});

test("a new line stands beside the line that it replaces, further ones beside the last of these", () => {
  const beside = (first: number, old: string[], text: string) => {
    const { removed, added } = previewOf(old, { first, numLines: old.length, text });
    return [removed, added.map(({ line, text, isBefore }) => [line, isBefore ? `${text}|` : `|${text}`])];
  };
  assert.deepEqual(beside(3, ["x", "y"], "  a\n  b\n"), [
    [3, 4],
    [
      [3, "|a"],
      [4, "|b"],
    ],
  ]);
  assert.deepEqual(beside(3, ["x", "y", "z"], "a\ny\nb"), [
    [3, 5],
    [
      [3, "|a"],
      [5, "|b"],
    ],
  ]);
  assert.deepEqual(beside(3, ["x"], "a\n  b\n"), [[3], [[3, "|a ⏎   b"]]]);
  assert.deepEqual(beside(3, ["x", "y"], "a\ny\nb\n"), [
    [3],
    [
      [3, "|a"],
      [4, "| ⏎ b"],
    ],
  ]);
  assert.deepEqual(beside(3, ["x", "y"], "a\n"), [[3, 4], [[3, "|a"]]]);
  assert.deepEqual(beside(3, ["x"], ""), [[3], []]);
  assert.deepEqual(beside(3, [], "a\n"), [[], [[2, "| ⏎ a"]]]);
  assert.deepEqual(beside(0, [], "a\n"), [[], [[0, "a ⏎ |"]]]);
  assert.equal(diffOf(["x", "y"], { first: 0, numLines: 2, text: "z\n" }), "-x\n-y\n+z");
});
