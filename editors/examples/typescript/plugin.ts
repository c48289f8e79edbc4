/**
 * A plugin whose editor is a terminal: node plugin.js HOST:PORT. docs/plugin.md explains it.
 *
 * Input lines: "type TEXT" (TEXT is now the document up to the cursor), "accept" and "dismiss".
 */
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { type ClientDuplexStream, status as Code, credentials, Metadata, type StatusObject } from "@grpc/grpc-js";
import * as pb from "completion-server-stubs";

const FIRST_BOUND_MS = 100;
const LAST_BOUND_MS = 5_000;
const client = new pb.CompletionServiceClient(process.argv[2]!, credentials.createInsecure(), {
  "grpc.initial_reconnect_backoff_ms": 100, // gRPC's own back-off grows to 2 minutes otherwise
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.keepalive_time_ms": 20_000, // notices a connection that broke without a word
});
const metadata = new Metadata();
metadata.set("x-user-id", "ada");
const token = process.env.COMPLETION_TOKEN; // send it only over TLS, or to this machine
if (token) metadata.set("authorization", `Bearer ${token}`);
/** A token that was refused is refused again: tell the user, and do not ask in a loop. */
const REFUSED_WAIT_MS = 15_000;

const sessionId = randomUUID();
let call: ClientDuplexStream<pb.SessionRequest, pb.SessionResponse> | undefined;
let isAway = true; // from a loss until the server has accepted another stream
let boundMs = FIRST_BOUND_MS;
let sequence = 0;
let request: pb.CompleteRequest | undefined; // the newest, until its end
let text = "";
let quietUntilMs = 0;

const say = (...words: unknown[]) => console.log(words.join(" "));

/** Ask anew, which supersedes the older request. docs/client-policy.md tells when to ask at all. */
function type(prefix: string): void {
  hide();
  if (isAway) return say("away");
  if (performance.now() < quietUntilMs) return say("quiet");
  sequence += 1;
  const place = { documentUri: "file:///a.py", languageId: "python", prefix };
  request = pb.CompleteRequest.fromPartial({ sessionId, sequence, timeoutMs: 10_000, ...place });
  send({ $case: "complete", value: request });
}

function dismiss(): void {
  if (request) send({ $case: "cancel", value: { sequence: request.sequence } });
  else if (text) report(pb.FeedbackKind.REJECTED);
  request = undefined;
  hide();
}

function accept(): void {
  if (!text || request) return; // the user sees no whole answer
  say("accepted", JSON.stringify(text));
  report(pb.FeedbackKind.ACCEPTED, text.length);
  text = "";
}

function report(kind: pb.FeedbackKind, acceptedCharacters = 0): void {
  send({ $case: "feedback", value: pb.ReportFeedbackRequest.fromPartial({ sequence, kind, acceptedCharacters }) });
}

function send(event: pb.SessionRequest["event"]): void {
  if (!call) connect();
  call!.write({ event });
}

function connect(): void {
  const opened = client.session(metadata);
  call = opened;
  opened.on("metadata", () => {
    isAway = false;
    say("connected");
  });
  opened.on("data", (response: pb.SessionResponse) => {
    boundMs = FIRST_BOUND_MS;
    receive(response);
  });
  opened.on("error", () => {}); // Node would throw it without a listener; "status" tells more
  opened.on("status", ended);
}

function ended(status: StatusObject): void {
  const { reason, retryAfterMs } = detailsOf(status);
  call = undefined;
  if (reason === "SESSION_ENDED") {
    say("rest"); // the next message opens another stream
    if (request) send({ $case: "complete", value: request }); // the server has not read it
    return;
  }
  isAway = true;
  hide();
  request = undefined; // an answer that comes after the reconnect is too late
  const isUnknown = status.code === Code.UNAUTHENTICATED;
  if (isUnknown) say("token", status.details);
  const waitMs = Math.max(retryAfterMs, isUnknown ? REFUSED_WAIT_MS : 0) + Math.random() * boundMs;
  boundMs = Math.min(LAST_BOUND_MS, 2 * boundMs);
  say("lost", reason || "-", Math.round(waitMs));
  setTimeout(connect, waitMs);
}

/** The reason, "" if there is none, and the time to wait before a retry. */
function detailsOf(status: StatusObject): { reason: string; retryAfterMs: number } {
  const found = { reason: "", retryAfterMs: 0 };
  const [raw] = status.metadata.get("grpc-status-details-bin");
  for (const { typeUrl, value } of raw instanceof Buffer ? pb.Status.decode(raw).details : []) {
    if (typeUrl.endsWith("/google.rpc.ErrorInfo")) found.reason = pb.ErrorInfo.decode(value).reason;
    if (typeUrl.endsWith("/google.rpc.RetryInfo")) {
      const { seconds = 0, nanos = 0 } = pb.RetryInfo.decode(value).retryDelay ?? {};
      found.retryAfterMs = seconds * 1_000 + nanos / 1e6;
    }
  }
  return found;
}

function receive({ sequence: number, event }: pb.SessionResponse): void {
  const isNewest = number === request?.sequence;
  if (event?.$case === "refusal") say("refused", event.value.error?.message);
  if (event?.$case === "delta" && isNewest) show(event.value.text);
  if (event?.$case !== "end") return;
  const end = event.value;
  if (end.retryAfterMs !== undefined) quietUntilMs = performance.now() + end.retryAfterMs;
  if (isNewest) finish(end);
  if (end.error) say("error", end.error.message);
  say("end", number, pb.FinishReason[end.finishReason]);
}

function finish(end: pb.End): void {
  request = undefined;
  const isWhole = end.finishReason === pb.FinishReason.STOP || end.finishReason === pb.FinishReason.LENGTH;
  if (!isWhole || !(text + end.text).trim()) return hide();
  show(end.text);
  report(pb.FeedbackKind.SHOWN);
}

function show(more: string): void {
  text += more;
  if (more && text.trim()) say("show", sequence, JSON.stringify(text));
}

function hide(): void {
  if (text) say("hide");
  text = "";
}

const COMMANDS: Record<string, (rest: string) => void> = { type, accept, dismiss };
createInterface({ input: process.stdin })
  .on("line", (line) => {
    const [, command = "", rest = ""] = /^(\w+) ?(.*)$/.exec(line) ?? [];
    COMMANDS[command]?.(rest);
  })
  .on("close", () => process.exit());
connect();
