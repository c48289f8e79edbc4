/** A server of the contract in the test's own process, with what it got and what it is told to do. */
import { status as Code, Metadata, Server, ServerCredentials, type ServerDuplexStream } from "@grpc/grpc-js";
import {
  CompletionServiceService,
  End,
  ErrorInfo,
  FinishReason,
  RetryInfo,
  type SessionRequest,
  type SessionResponse,
  Status,
} from "completion-server-stubs";
import type { StreamListener, StreamSettings } from "../src/client/stream";

type Call = ServerDuplexStream<SessionRequest, SessionResponse>;

/** Waits no test should need. */
export const LIMIT_MS = 20_000;

export class FakeServer {
  readonly received: SessionRequest[] = [];
  readonly metadata: Metadata[] = [];
  calls: Call[] = [];
  /** What to do with each message. */
  onMessage: (call: Call, message: SessionRequest) => void = () => {};
  /** Why a stream with this authorization is refused; "" if it is not. */
  refuses: (authorization: string) => string = () => "";
  #server?: Server;
  port = 0;

  async start(): Promise<void> {
    const server = new Server();
    server.addService(CompletionServiceService, {
      session: (call: Call) => {
        this.calls.push(call);
        this.metadata.push(call.metadata);
        const refusal = this.refuses(call.metadata.get("authorization").join());
        if (refusal) return void call.emit("error", { code: Code.UNAUTHENTICATED, details: refusal });
        call.sendMetadata(new Metadata());
        call.on("data", (message: SessionRequest) => {
          this.received.push(message);
          this.onMessage(call, message);
        });
        call.on("end", () => call.end());
        call.on("error", () => {});
      },
      complete: () => {},
      reportFeedback: () => {},
    });
    this.port = await new Promise<number>((resolve, reject) =>
      server.bindAsync(`127.0.0.1:${this.port}`, ServerCredentials.createInsecure(), (error, port) =>
        error ? reject(error) : resolve(port),
      ),
    );
    this.#server = server;
  }

  /** End all connections at once. */
  stop(): void {
    this.#server?.forceShutdown();
    this.calls = [];
  }

  settings(more: Partial<StreamSettings> = {}): StreamSettings {
    return { addresses: [`127.0.0.1:${this.port}`], caller: {}, ...more };
  }
}

/** Answer each request with a delta and an end. */
export function answering(text: string, ended = "", end: Partial<End> = { finishReason: FinishReason.STOP }) {
  return (call: Call, { event }: SessionRequest) => {
    if (event?.$case !== "complete") return;
    const { sequence } = event.value;
    call.write({ sequence, event: { $case: "delta", value: { text } } });
    call.write({ sequence, event: { $case: "end", value: End.fromPartial({ ...end, text: ended }) } });
  };
}

/** End a stream with a status as the server does. */
export function endWith(call: Call, reason: string, retryAfterMs = 0): void {
  const seconds = Math.floor(retryAfterMs / 1000);
  const retryDelay = { seconds, nanos: (retryAfterMs % 1000) * 1e6 };
  const pack = (name: string, value: Uint8Array) => ({
    typeUrl: `type.googleapis.com/google.rpc.${name}`,
    value: Buffer.from(value),
  });
  const details = [
    pack("ErrorInfo", ErrorInfo.encode(ErrorInfo.fromPartial({ reason, domain: "completion.v1" })).finish()),
    pack("RetryInfo", RetryInfo.encode({ retryDelay }).finish()),
  ];
  const metadata = new Metadata();
  metadata.set(
    "grpc-status-details-bin",
    Buffer.from(Status.encode({ code: Code.UNAVAILABLE, message: reason, details }).finish()),
  );
  call.emit("error", { code: Code.UNAVAILABLE, details: reason, metadata });
}

/** A listener that records. */
export class Recorder implements StreamListener {
  readonly events: string[] = [];
  onConnected(address: string): void {
    this.events.push(`connected ${address}`);
  }
  onLost(error: Error): void {
    this.events.push(`lost ${error.message}`);
  }
  onRefused(message: string): void {
    this.events.push(`refused ${message}`);
  }
}

/** Wait until a condition holds; fail with its name after a limit. */
export async function until(name: string, condition: () => boolean): Promise<void> {
  const endsAt = Date.now() + LIMIT_MS;
  while (!condition()) {
    if (Date.now() > endsAt) throw new Error(`${name} did not come within ${LIMIT_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
