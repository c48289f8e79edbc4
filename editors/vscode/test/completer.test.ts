/** The completer with a session of the test's own: what is asked, offered, cancelled and reported. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { status as Code } from "@grpc/grpc-js";
import { End, FeedbackKind, FinishReason, Mode, type ReportFeedbackRequest, Trigger } from "completion-server-stubs";
import { ServiceError } from "../src/client/errors";
import type { Answer, Question } from "../src/client/session";
import { Completer, type MultiLine } from "../src/completer";
import type { Text } from "../src/policy/messages";
import { until } from "./support";

interface Asked {
  question: Question;
  signal: AbortSignal;
  timeoutMs: number;
  onText: (text: string) => void;
  end: (reason?: FinishReason, error?: ServiceError) => void;
  fail: (error: ServiceError) => void;
}

let asked: Asked[];
let reports: Partial<ReportFeedbackRequest>[];
let completer: Completer;

const session = {
  complete(question: Question, timeoutMs: number, signal = new AbortController().signal, onText = (_: string) => {}) {
    const sequence = asked.length + 100;
    return new Promise<Answer>((resolve) => {
      const end = (finishReason = FinishReason.STOP, error?: ServiceError) =>
        resolve({ sequence, text: "", totalMs: 1, end: End.fromPartial({ finishReason }), error });
      const fail = (error: ServiceError) => resolve({ sequence, text: "", totalMs: 1, error });
      signal.addEventListener("abort", () => resolve({ sequence, text: "", totalMs: 1 }));
      asked.push({ question, signal, timeoutMs, onText, end, fail });
    });
  },
  report: (feedback: Partial<ReportFeedbackRequest>) => void reports.push(feedback),
};

const at = (marked: string): Text => {
  const [before = "", after = ""] = marked.split("|");
  return { uri: "file:///a.py", before, after };
};
const never = new AbortController().signal;

function start(multiLine: MultiLine = "auto"): void {
  const describe = () => ({ languageId: "python", snippets: [] });
  const settings = { followsRhythm: false, delayMinMs: 0 };
  completer = new Completer({ session: () => session, describe, onAnswer: () => {} }, settings, multiLine);
}

beforeEach(() => {
  asked = [];
  reports = [];
  start();
});
afterEach(() => completer.dispose());

test("a key is asked for, and its text is offered when it is whole", async () => {
  completer.changed(at("x = |"), "typed");
  const offer = completer.offer(never);
  const { question, onText, end } = asked[0]!;
  assert.deepEqual(
    [question.prefix, question.suffix, question.languageId, question.trigger],
    ["x = ", "", "python", Trigger.AUTOMATIC],
  );
  onText("a ");
  assert.equal(completer.shown?.text, "a ");
  let isOffered = false;
  void offer.then(() => (isOffered = true));
  await new Promise(setImmediate);
  assert.equal(isOffered, false, "text that may still grow was offered");
  onText("+ b");
  end();
  assert.deepEqual({ ...(await offer) }, { kind: "show", request: 1, text: "a + b", replaced: 0 });
});

test("the lines of a block that are there after a second are offered, and the rest after them", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  completer.changed(at("def f():\n    |\n"), "typed");
  const offer = completer.offer(never);
  const { question, onText, end } = asked[0]!;
  assert.equal(question.mode, Mode.MULTI_LINE);
  let isOffered = false;
  void offer.then(() => (isOffered = true));
  onText("a\n    b");
  context.mock.timers.tick(999);
  await new Promise(setImmediate);
  assert.equal(isOffered, false, "a block was offered before its time");
  context.mock.timers.tick(1);
  assert.equal((await offer)?.text, "a\n    b");
  onText("\n    c");
  completer.drawn(1);
  completer.accepted(1, at("def f():\n    a\n    b|\n"), "line", "a\n    b");
  assert.deepEqual(reports, [], "the server takes no feedback before the end");
  end();
  assert.equal((await completer.offer(never))?.text, "\n    c");
  assert.deepEqual(
    reports.map(({ sequence, kind }) => [sequence, kind]),
    [
      [100, FeedbackKind.SHOWN],
      [100, FeedbackKind.ACCEPTED_LINE],
    ],
  );
});

test("half a line is not offered after a second, either", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  completer.changed(at("def f():|"), "typed");
  const offer = completer.offer(never);
  context.mock.timers.tick(1_500);
  asked[0]!.onText("\n    retu");
  asked[0]!.end(FinishReason.DEADLINE, new ServiceError("late", Code.DEADLINE_EXCEEDED));
  assert.equal(await offer, undefined);
});

test("what is typed along is offered from memory", async () => {
  completer.changed(at("x = |"), "typed");
  asked[0]!.onText("abc");
  asked[0]!.end();
  await completer.offer(never);
  completer.changed(at("x = a|"), "typed");
  assert.equal((await completer.offer(never))?.text, "bc");
  assert.equal(asked.length, 1);
});

test("a key that contradicts the request cancels it", async () => {
  completer.changed(at("x = |"), "typed");
  asked[0]!.onText("abc");
  completer.changed(at("x = z|"), "typed");
  assert.equal(asked[0]!.signal.aborted, true);
  assert.equal(asked.length, 2);
});

test("nothing is offered of an answer that was superseded", async () => {
  completer.changed(at("x = |"), "typed");
  const offer = completer.offer(never);
  asked[0]!.onText("abc");
  asked[0]!.end(FinishReason.SUPERSEDED);
  assert.equal(await offer, undefined);
});

test("automatic requests have 2 s, and the next key asks at once after a deadline, but not after an error", async () => {
  const late = new ServiceError("late", Code.DEADLINE_EXCEEDED);
  const ends: ((last: Asked) => void)[] = [
    (last) => last.fail(late),
    (last) => last.end(FinishReason.DEADLINE, late),
    (last) => last.end(FinishReason.ERROR, new ServiceError("no", Code.INTERNAL)),
  ];
  for (const [index, end] of ends.entries()) {
    completer.changed(at(`x${index} = |`), "typed");
    const last = asked.at(-1)!;
    assert.equal(last.timeoutMs, 2_000);
    end(last);
    await completer.offer(never);
    completer.changed(at(`y${index} = |`), "typed");
    assert.equal(asked.length, index < 2 ? 2 * index + 2 : 5, `after end ${index}`);
    completer.rejected();
    completer.moved(at("|"));
  }
});

test("an offer that is waited for no more is none, and a newer one takes its place", async () => {
  completer.changed(at("x = |"), "typed");
  const controller = new AbortController();
  const first = completer.offer(controller.signal);
  controller.abort();
  assert.equal(await first, undefined);
  const second = completer.offer(never);
  const third = completer.offer(never);
  assert.equal(await second, undefined);
  asked[0]!.onText("abc");
  asked[0]!.end();
  assert.equal((await third)?.text, "abc");
});

test("after an acceptance the next text is asked for at once, and feedback has the session's numbers", async () => {
  completer.changed(at("x = |"), "typed");
  asked[0]!.onText("abc");
  asked[0]!.end();
  const offer = await completer.offer(never);
  completer.drawn(offer!.request);
  completer.accepted(offer!.request, at("x = abc|"), "whole", "abc");
  assert.equal(asked[1]!.question.trigger, Trigger.PREFETCH);
  assert.deepEqual(reports, [
    { sequence: 100, kind: FeedbackKind.SHOWN, acceptedCharacters: 0 },
    { sequence: 100, kind: FeedbackKind.ACCEPTED, acceptedCharacters: 3 },
  ]);
});

test("nothing is asked while the server is away", () => {
  completer.away();
  completer.changed(at("x = |"), "typed");
  assert.equal(asked.length, 0);
  completer.back();
  completer.changed(at("x = 1|"), "typed");
  assert.equal(asked.length, 1);
});

test("the extent follows the setting", async () => {
  const modes: (Mode | undefined)[] = [];
  for (const setting of ["auto", "always", "never"] as const) {
    for (const text of ["def f():\n    |", "x = |"]) {
      completer.dispose();
      start(setting);
      completer.changed(at(text), "typed");
      modes.push(asked.at(-1)?.question.mode);
    }
  }
  const { MULTI_LINE, SINGLE_LINE } = Mode;
  assert.deepEqual(modes, [MULTI_LINE, SINGLE_LINE, MULTI_LINE, MULTI_LINE, SINGLE_LINE, SINGLE_LINE]);
});

test("a key waits for its time", async () => {
  completer = new Completer(
    { session: () => session, describe: () => ({}), onAnswer: () => {} },
    { followsRhythm: false, delayMinMs: 30 },
    "auto",
  );
  completer.changed(at("x|"), "typed");
  completer.changed(at("x |"), "typed");
  assert.equal(asked.length, 0);
  await until("the request", () => asked.length === 1);
  assert.equal(asked[0]!.question.prefix, "x ");
});
