/** Tokens: their sources, when they are fetched again, and what follows a refusal, also on a real server. */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { status as Code, Metadata } from "@grpc/grpc-js";
import { Session, shownText } from "../src/client/session";
import { Token, TokenError } from "../src/client/token";
import { answering, FakeServer, Recorder, until } from "./support";

const TIMEOUT_MS = 20_000;
let folder: string;
let file: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "token-"));
  file = join(folder, "token");
});

afterEach(() => rmSync(folder, { recursive: true }));

/** A command that prints the file, and counts its runs. */
const printing = () => ["sh", "-c", 'printf x >> "$0.runs"; cat "$0"', file];
const numRuns = () => (existsSync(`${file}.runs`) ? readFileSync(`${file}.runs`, "utf8").length : 0);
const jwt = (exp: number) => `e30.${Buffer.from(JSON.stringify({ exp })).toString("base64url")}.sig`;

test("a file is read again when it changes, and the last good token is used on", async () => {
  writeFileSync(file, "one\n");
  const token = Token.ofFile(file);
  assert.equal(await token.get(), "one");
  writeFileSync(file, "other\n");
  assert.equal(await token.get(), "other");
  rmSync(file);
  assert.equal(await token.get(), "other");
  await assert.rejects(Token.ofFile(folder).get(), /there is no token to send: the file .*: it is no file/);
});

test("a command is run once for all, and again before its token expires", async () => {
  let nowMs = 1_000_000;
  const token = Token.ofCommand(printing(), () => nowMs);
  writeFileSync(file, jwt(1_600));
  assert.deepEqual(new Set(await Promise.all([token.get(), token.get()])), new Set([jwt(1_600)]));
  nowMs = 1_539_000;
  await token.get();
  assert.equal(numRuns(), 1);
  writeFileSync(file, jwt(2_200));
  nowMs = 1_541_000;
  assert.equal(await token.get(), jwt(2_200));
  assert.equal(numRuns(), 2);
});

test("a command that fails is named without its arguments or its output", async () => {
  for (const [words, said] of [
    [["sh", "-c", "echo secret; exit 3", "secret"], /: the command sh: it ended with status 3/],
    [["/nowhere/secretive", "secret"], /it can't be run \(ENOENT\)/],
    [["sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x", "secret"], /it printed more than 16 KiB/],
    [["sh", "-c", "echo two secrets"], /expected ASCII characters without blanks/],
  ] as const) {
    const error = await Token.ofCommand(words).get().then(String, String);
    assert.match(error, said);
    assert.doesNotMatch(error, /secret(?!ive)/);
  }
});

test("a refused token is fetched again once, and then waits longer and longer", async () => {
  let nowMs = 0;
  writeFileSync(file, "one");
  const token = Token.ofCommand(printing(), () => nowMs);
  token.refused(await token.get(), "it is revoked");
  const waitsMs: (number | undefined)[] = [];
  for (let i = 0; i < 6; i++) {
    const error = await token.get().then(
      () => assert.fail("it was not refused"),
      (caught) => caught,
    );
    assert.ok(error instanceof TokenError);
    assert.match(error.message, /^the server refused the token of the command sh: it is revoked$/);
    waitsMs.push(error.retryAfterMs);
    nowMs += error.retryAfterMs ?? 0;
    token.refused(await token.get(), "it is revoked");
  }
  assert.deepEqual(waitsMs, [15_000, 30_000, 60_000, 120_000, 240_000, 300_000]);
});

async function withServer(run: (server: FakeServer, recorder: Recorder, session: Session) => Promise<void>) {
  const server = new FakeServer();
  await server.start();
  server.refuses = (given) => (given === "Bearer good" ? "" : "it is unknown");
  server.onMessage = answering("a");
  const recorder = new Recorder();
  const session = new Session(server.settings({ token: Token.ofFile(file) }), recorder);
  try {
    await run(server, recorder, session);
  } finally {
    session.close();
    server.stop();
  }
}

test("a session that is refused tells it once, does not ask in a loop, and goes on with another token", async () => {
  writeFileSync(file, "bad");
  await withServer(async (server, recorder, session) => {
    await until("the loss", () => recorder.events.length === 1);
    assert.match(recorder.events[0] ?? "", /^lost the server refused the token of the file .*: it is unknown$/);
    assert.equal((await session.complete({}, TIMEOUT_MS)).error?.message, "not connected");
    await new Promise((resolve) => setTimeout(resolve, 300)); // many times the back-off
    assert.deepEqual([server.metadata.length, recorder.events.length], [1, 1]);
    writeFileSync(file, "good");
    await until("the connection", () => recorder.events.length === 2);
    assert.equal(shownText(await session.complete({}, TIMEOUT_MS)), "a");
  });
});

test("a session whose token ends goes on with the next one, and its request with it", async () => {
  writeFileSync(file, "good");
  await withServer(async (server, recorder, session) => {
    await until("the connection", () => recorder.events.length === 1);
    server.onMessage = () => {};
    const answer = session.complete({}, TIMEOUT_MS);
    await until("the request", () => server.received.length === 1);
    server.refuses = (given) => (given === "Bearer new" ? "" : "it has expired");
    server.onMessage = answering("b");
    writeFileSync(file, "new");
    server.calls[0]?.emit("error", { code: Code.UNAUTHENTICATED, details: "it has expired", metadata: new Metadata() });
    assert.equal(shownText(await answer), "b");
    assert.ok(recorder.events.every((each) => each.startsWith("connected")));
  });
});
