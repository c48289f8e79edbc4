/** The session on a real gRPC server in this process: answers, cancels, losses, reconnects. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { CompletionServiceClient, ErrorReason, FeedbackKind, FinishReason, ShedReason } from "completion-server-stubs";
import { Session, shownText } from "../src/client/session";
import { stagesOf } from "../src/client/stages";
import { Token } from "../src/client/token";
import { answering, endWith, FakeServer, Recorder, until } from "./support";

const TIMEOUT_MS = 20_000;
let server: FakeServer;
let recorder: Recorder;
let session: Session;

const numConnected = () => recorder.events.filter((each) => each.startsWith("connected")).length;
const numOf = (kind: string) => server.received.filter(({ event }) => event?.$case === kind).length;

beforeEach(async () => {
  server = new FakeServer();
  await server.start();
  recorder = new Recorder();
});

afterEach(() => {
  session.close();
  server.stop();
});

async function connected(caller = {}, token?: Token): Promise<void> {
  session = new Session(server.settings({ caller, token }), recorder);
  await until("the connection", () => numConnected() === 1);
}

test("an answer is the deltas and the text of its end", async () => {
  server.onMessage = answering("a + ", "b", {
    finishReason: FinishReason.STOP,
    timings: { queueMs: 1, tokeniseMs: 2, prefillMs: 3, decodeMs: 40, totalMs: 46 },
  });
  await connected();
  const texts: string[] = [];
  const answer = await session.complete({ prefix: "x = " }, TIMEOUT_MS, undefined, (text) => texts.push(text));
  assert.equal(shownText(answer), "a + b");
  assert.deepEqual(texts, ["a + ", "b"]);
  assert.match(
    stagesOf(answer).join("\n"),
    /request 1: stop\n.*queue 1.0 ms, tokenise 2.0 ms, prefill 3.0 ms, decode 40 ms, total 46 ms/s,
  );
  assert.ok(!stagesOf(answer).join().includes("a + b"), "the stages have no code");
});

test("sequence numbers rise, and every message has the session's id and the deadline", async () => {
  server.onMessage = answering("a");
  await connected({ user: "ada", tenant: "acme" }, Token.ofText("t0ken", "the test"));
  await session.complete({}, 1234);
  await session.complete({}, TIMEOUT_MS);
  const [first, second] = server.received.map(({ event }) => (event?.$case === "complete" ? event.value : undefined));
  assert.deepEqual([first?.sequence, second?.sequence, first?.timeoutMs], [1, 2, 1234]);
  assert.ok(first?.sessionId);
  assert.equal(first?.sessionId, second?.sessionId);
  const metadata = server.metadata[0];
  const sent = ["x-user-id", "x-tenant-id", "authorization"].map((key) => metadata?.get(key)[0]);
  assert.deepEqual(sent, ["ada", "acme", "Bearer t0ken"]);
});

test("text before another end is not shown, and superseded and shed are no errors", async () => {
  await connected();
  for (const finishReason of [FinishReason.SUPERSEDED, FinishReason.SHED, FinishReason.CANCELLED]) {
    server.onMessage = answering("half", "", { finishReason });
    const answer = await session.complete({}, TIMEOUT_MS);
    assert.equal(shownText(answer), "");
    assert.equal(answer.error, undefined);
  }
  server.onMessage = answering("half", "", {
    finishReason: FinishReason.ERROR,
    error: {
      code: 9,
      message: "no",
      fieldViolations: [{ field: "mode", description: "unknown" }],
      reason: ErrorReason.PROMPT_SUSPECTED,
    },
  });
  const { error } = await session.complete({}, TIMEOUT_MS);
  assert.deepEqual([error?.code, error?.reason, error?.message], [9, "PROMPT_SUSPECTED", "no"]);
  assert.deepEqual(error?.fields, ["mode"]);
});

test("an abort cancels the request on the server", async () => {
  await connected();
  const controller = new AbortController();
  const answer = session.complete({}, TIMEOUT_MS, controller.signal);
  await until("the request", () => numOf("complete") === 1);
  controller.abort();
  assert.deepEqual([(await answer).end, (await answer).error], [undefined, undefined]);
  await until("the cancel", () => numOf("cancel") === 1);
  assert.deepEqual(server.received[1]?.event, { $case: "cancel", value: { sequence: 1 } });
});

test("a request without an answer fails at its deadline and is cancelled", async () => {
  await connected();
  const { error } = await session.complete({}, 50);
  assert.match(error?.message ?? "", /deadline/);
  await until("the cancel", () => numOf("cancel") === 1);
});

test("a restart of the server fails the open request, and the session goes on by itself", async () => {
  await connected();
  const lost = session.complete({}, TIMEOUT_MS);
  await until("the request", () => numOf("complete") === 1);
  server.stop();
  assert.ok((await lost).error);
  assert.equal(session.isConnected, false);
  assert.match((await session.complete({}, TIMEOUT_MS)).error?.message ?? "", /not connected/);
  await server.start();
  server.onMessage = answering("again");
  await until("the reconnect", () => numConnected() === 2);
  assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "again");
});

test("a session that ended in good order is opened with the next request, without a loss", async (t) => {
  const { mock } = t.mock.method(CompletionServiceClient.prototype, "session");
  server.onMessage = answering("a");
  await connected();
  await session.complete({}, TIMEOUT_MS);
  let hasEnded = false;
  mock.calls[0]?.result?.on("status", () => {
    hasEnded = true;
  });
  for (const call of server.calls) endWith(call, "SESSION_ENDED");
  await until("the end of the stream", () => hasEnded);
  assert.equal(session.isConnected, true);
  assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "a");
  assert.equal(server.calls.length, 2);
  assert.deepEqual(
    recorder.events.filter((each) => each.startsWith("lost")),
    [],
  );
});

test("feedback opens a session that ended in good order", async () => {
  await connected();
  for (const call of server.calls) endWith(call, "SESSION_ENDED");
  await until("the feedback", () => {
    session.report({ sequence: 1, kind: FeedbackKind.SHOWN }); // until the end of the first stream has come
    return server.calls.length === 2 && numOf("feedback") > 0;
  });
  assert.deepEqual(
    recorder.events.filter((each) => each.startsWith("lost")),
    [],
  );
});

test("a request that an ending session did not read is sent again", async () => {
  server.onMessage = (call) => {
    server.onMessage = answering("second");
    endWith(call, "SESSION_ENDED");
  };
  await connected();
  assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "second");
  assert.equal(numOf("complete"), 2);
});

test("a server that drains is left, and its time to retry is kept", async () => {
  await connected();
  const startedAtMs = performance.now();
  for (const call of server.calls) endWith(call, "DRAINING", 300);
  await until("the reconnect", () => numConnected() === 2);
  // Timers round to milliseconds.
  assert.ok(performance.now() - startedAtMs >= 295, "the session came back before the time that the server named");
});

test("a request that was shed because the server drains drops the stream", async () => {
  server.onMessage = answering("", "", { finishReason: FinishReason.SHED, shedReason: ShedReason.DRAINING });
  await connected();
  assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "");
  await until("the loss", () => recorder.events.includes("lost the server is shutting down"));
});

test("with several addresses the session goes to another server when one fails", async () => {
  const other = new FakeServer();
  await other.start();
  server.onMessage = other.onMessage = answering("a");
  const addresses = [`127.0.0.1:${server.port}`, `127.0.0.1:${other.port}`];
  session = new Session(server.settings({ addresses }), recorder);
  await until("the connection", () => numConnected() === 1);
  const [first, second] = recorder.events[0] === `connected ${addresses[0]}` ? [server, other] : [other, server];
  first.stop();
  await until("the other server", () => recorder.events.includes(`connected 127.0.0.1:${second.port}`));
  assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "a");
  other.stop();
});

test("feedback has the session's id, and a refusal of it ends nothing", async () => {
  await connected();
  server.onMessage = (call, { event }) => {
    if (event?.$case !== "feedback") return;
    const error = { code: 3, message: "too late", fieldViolations: [], reason: 0 };
    call.write({ sequence: event.value.sequence, event: { $case: "refusal", value: { error } } });
  };
  session.report({ sequence: 1, kind: FeedbackKind.ACCEPTED, acceptedCharacters: 3 });
  await until("the refusal", () => recorder.events.includes("refused too late"));
  const [message] = server.received;
  assert.equal(message?.event?.$case, "feedback");
  assert.equal(session.isConnected, true);
});
