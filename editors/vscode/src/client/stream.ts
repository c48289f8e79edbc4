/**
 * A `Session` stream that reconnects: the transport below session.ts.
 *
 *     connected  -- the server ends it as SESSION_ENDED -->  resting
 *     connected  -- the token is refused, no text yet --->  resting (with the token that is fetched again)
 *     connected  -- any other end, or drop() ------------->  lost
 *     resting    -- a message is sent -------------------->  connected (requests without an answer are sent again)
 *     resting    -- no connection, or drop() ------------->  lost
 *     lost       -- after the back-off ------------------->  connected
 *
 * A loss fails all open requests, since their text would be stale after a reconnect; a request that is sent while the
 * stream is lost fails at once. A token that is refused twice is presented again when it may be. A GOAWAY needs no state of its own: gRPC opens the next stream on a new connection.
 */
import { type ChannelCredentials, type ClientDuplexStream, status as Code } from "@grpc/grpc-js";
import type { ReportFeedbackRequest, SessionRequest, SessionResponse } from "completion-server-stubs";
import { type CompleteRequest, CompletionServiceClient, type End } from "completion-server-stubs";
import { Backoff } from "./backoff";
import {
  type Caller,
  callerMetadata,
  channelCredentials,
  channelOptions,
  checkCaller,
  checkTransport,
  EndpointChoice,
  type Tls,
} from "./endpoints";
import { connectionLost, errorOfStatus, SESSION_ENDED, type ServiceError } from "./errors";
import { Token, TokenError } from "./token";

const CONNECT_TIMEOUT_MS = 10_000;
/** Shorter where another server can be asked. */
const CONNECT_TIMEOUT_OF_SEVERAL_MS = 2_000;
/** Between two looks at the source of a token that is refused. */
const LOOK_MS = 1_000;
/** A token that is refused on a stream of this age was accepted before. */
const ACCEPTED_AFTER_MS = 60_000;

export interface StreamSettings {
  addresses: readonly string[];
  tls?: Tls;
  caller: Caller;
  token?: Token;
}

/** Gets the events of one request. Either `onEnd` or `onError` comes last, once. */
export interface RequestListener {
  onText(text: string): void;
  onEnd(end: End): void;
  onError(error: ServiceError): void;
}

export interface StreamListener {
  /** The server at this address accepted the stream. */
  onConnected(address: string): void;
  onLost(error: ServiceError): void;
  /** The server refused a message that began no request, such as feedback that came too late. */
  onRefused(message: string): void;
}

interface OpenRequest {
  message: CompleteRequest;
  listener: RequestListener;
  sentAtMs: number;
  hasText?: boolean;
}

type Call = ClientDuplexStream<SessionRequest, SessionResponse>;

export class SessionStream {
  #state: "connected" | "resting" | "lost" | "closed" = "lost";
  #client?: CompletionServiceClient;
  #call?: Call;
  #address = "";
  #isConnecting = false;
  /** The token with which the stream was opened, and when. */
  #presented = "";
  #openedAtMs = 0;
  #timer?: NodeJS.Timeout;
  readonly #requests = new Map<number, OpenRequest>();
  /** Feedback that waits for the next stream. */
  #waiting: SessionRequest[] = [];
  readonly #backoff: Backoff;
  readonly #choice: EndpointChoice;
  readonly #credentials: ChannelCredentials;
  readonly #token: Token;

  /** Throws an Error that names what can't be used of the settings. */
  constructor(
    private readonly settings: StreamSettings,
    private readonly listener: StreamListener,
    random: () => number = Math.random,
  ) {
    this.#backoff = new Backoff(random);
    this.#choice = new EndpointChoice(settings.addresses, settings.caller.user ?? "");
    this.#credentials = channelCredentials(settings.tls);
    checkCaller(settings.caller);
    this.#token = settings.token ?? Token.none();
    if (this.#token.isGiven) checkTransport(settings.addresses, settings.tls !== undefined);
    void this.#connect();
  }

  /** Whether a request can be sent now. */
  get isConnected(): boolean {
    return this.#state === "connected" || this.#state === "resting";
  }

  /** Send a request, whose sequence number is above those before it. Its listener gets the error if that fails. */
  send(message: CompleteRequest, listener: RequestListener): void {
    if (!this.isConnected) return listener.onError(connectionLost("not connected"));
    this.#requests.set(message.sequence, { message, listener, sentAtMs: Date.now() });
    if (this.#state === "resting") return void this.#connect();
    this.#call?.write({ event: { $case: "complete", value: message } });
  }

  /** Cancel a request; its listener gets no further event. Ignored if it has ended. */
  discard(sequence: number): void {
    if (!this.#requests.delete(sequence)) return;
    this.#call?.write({ event: { $case: "cancel", value: { sequence } } });
  }

  /** Report feedback. It is dropped while the stream is lost: another server would refuse it. */
  report(feedback: ReportFeedbackRequest): void {
    const message: SessionRequest = { event: { $case: "feedback", value: feedback } };
    if (this.#call) this.#call.write(message);
    else if (this.#state === "resting") {
      this.#waiting.push(message);
      void this.#connect();
    }
  }

  /** Drop the connection and open another after the back-off, as after a change of network. */
  drop(error = connectionLost("the connection was dropped")): void {
    if (this.isConnected) this.#lose(error);
  }

  /** End the stream for good. */
  close(): void {
    this.#state = "closed";
    clearTimeout(this.#timer);
    this.#disconnect();
    this.#failRequests(connectionLost("the session was closed"));
  }

  /** Connect to the best server and open a stream. The connection of a resting stream is used again. */
  async #connect(): Promise<void> {
    if (this.#isConnecting) return;
    this.#isConnecting = true;
    const { addresses } = this.settings;
    const address = this.#choice.choose(Date.now());
    if (address !== this.#address) this.#disconnect();
    this.#client ??= new CompletionServiceClient(address, this.#credentials, channelOptions(address));
    this.#address = address;
    const client = this.#client;
    const isReady = await becomesReady(client, addresses.length);
    const token = isReady ? await this.#token.get().catch((error) => error as ServiceError) : "";
    this.#isConnecting = false;
    if (this.#client !== client) return; // dropped or closed meanwhile
    if (!isReady) this.#lose(connectionLost(`no connection to ${address}`));
    else if (typeof token === "string") this.#open(client, token);
    else this.#lose(token);
  }

  #open(client: CompletionServiceClient, token: string): void {
    const { tls, caller } = this.settings;
    const call = client.session(callerMetadata({ ...caller, token }, this.#address, tls !== undefined));
    this.#presented = token;
    this.#openedAtMs = Date.now();
    this.#call = call;
    this.#state = "connected";
    call.on("metadata", () => call === this.#call && this.listener.onConnected(this.#address));
    call.on("data", (response: SessionResponse) => call === this.#call && this.#dispatch(response));
    call.on("error", () => {}); // without a listener Node would throw it; "status" follows
    call.on("status", (status) => call === this.#call && this.#ended(errorOfStatus(status)));
    for (const request of this.#requests.values()) this.#sendAgain(call, request);
    for (const message of this.#waiting.splice(0)) call.write(message);
  }

  /** Send a request on another stream, with what is left of its time. */
  #sendAgain(call: Call, request: OpenRequest): void {
    const { message, sentAtMs } = request;
    request.sentAtMs = Date.now();
    if (message.timeoutMs) message.timeoutMs = Math.max(1, message.timeoutMs - (request.sentAtMs - sentAtMs));
    call.write({ event: { $case: "complete", value: message } });
  }

  #dispatch({ sequence, event }: SessionResponse): void {
    this.#backoff.reset();
    this.#token.accepted();
    this.#choice.answered(this.#address);
    if (event?.$case === "refusal") this.listener.onRefused(event.value.error?.message ?? "");
    const request = this.#requests.get(sequence);
    if (!request) return;
    if (event?.$case === "delta") {
      request.hasText = true;
      request.listener.onText(event.value.text);
    }
    if (event?.$case === "end") {
      this.#requests.delete(sequence);
      request.listener.onEnd(event.value);
    }
  }

  #ended(error: ServiceError): void {
    if (error.code === Code.UNAUTHENTICATED || error.code === Code.PERMISSION_DENIED) return this.#refused(error);
    if (error.reason !== SESSION_ENDED) return this.#lose(error);
    this.#call = undefined;
    this.#state = "resting";
    if (this.#requests.size > 0) void this.#connect();
  }

  /** Present another token, if the source has one: `#connect` loses the stream otherwise. */
  #refused(error: ServiceError): void {
    if (Date.now() - this.#openedAtMs > ACCEPTED_AFTER_MS) this.#token.accepted();
    this.#token.refused(this.#presented, error.message);
    const requests = [...this.#requests.values()];
    if (requests.some(({ hasText }) => hasText)) return this.#lose(error);
    this.#call = undefined;
    this.#state = "resting";
    void this.#connect();
  }

  /** Look until the token may be sent again or is another. */
  #waitForToken(): void {
    const leftMs = this.#token.waitLeftMs;
    const next = () => (leftMs ? this.#waitForToken() : void this.#connect());
    this.#timer = setTimeout(next, leftMs ? Math.min(LOOK_MS, leftMs) : 0);
  }

  #lose(error: ServiceError): void {
    this.#state = "lost";
    this.#disconnect();
    this.#waiting = [];
    if (error instanceof TokenError) {
      this.#waitForToken(); // it is no fault of the server's
      this.listener.onLost(error);
      return this.#failRequests(error);
    }
    const nowMs = Date.now();
    this.#choice.failed(this.#address, nowMs, error.retryAfterMs);
    const isAnotherNext = this.#choice.choose(nowMs) !== this.#address;
    const waitMs = (isAnotherNext ? 0 : (error.retryAfterMs ?? 0)) + this.#backoff.nextMs();
    this.#timer = setTimeout(() => void this.#connect(), waitMs);
    this.listener.onLost(error);
    this.#failRequests(error);
  }

  #failRequests(error: ServiceError): void {
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    for (const { listener } of requests) listener.onError(error);
  }

  #disconnect(): void {
    const call = this.#call;
    this.#call = undefined; // before the cancel, whose status is of no interest
    call?.cancel();
    this.#client?.close();
    this.#client = undefined;
  }
}

function becomesReady(client: CompletionServiceClient, numAddresses: number): Promise<boolean> {
  const timeoutMs = numAddresses > 1 ? CONNECT_TIMEOUT_OF_SEVERAL_MS : CONNECT_TIMEOUT_MS;
  return new Promise((resolve) => client.waitForReady(Date.now() + timeoutMs, (error) => resolve(!error)));
}
