/** The WebSocket to the server, which reconnects by itself. */
import type { PageMessage, ServerMessage } from "./messages";

const MIN_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;
/** A connection that is this old has worked, and the next wait is short again. */
const WORKS_MS = 5_000;
/** The codes with which the server closes where it refuses the token: another connection with it would be of no use. */
const REFUSED_CODES: readonly number[] = [4401, 4403];

export interface ChannelHooks {
  /** Return the token to sign in with, if there is one. */
  token(): string | undefined;
  /** The server serves this page from now on. */
  onOpen(): void;
  onMessage(message: ServerMessage): void;
  /** The server needs a token; `why` says why it does not take the last one. */
  onSignIn(why: string): void;
  /** The connection was lost or refused; `why` is the server's reason, if it gave one. */
  onClose(why: string): void;
}

export class Channel {
  #socket?: WebSocket;
  #isServed = false;
  #timer?: ReturnType<typeof setTimeout>;
  #waitMs = MIN_WAIT_MS;

  constructor(private readonly hooks: ChannelHooks) {}

  open(): void {
    clearTimeout(this.#timer);
    const socket = new WebSocket(new URL("/playground/socket", location.href.replace(/^http/, "ws")));
    this.#socket = socket;
    let openedMs = Number.POSITIVE_INFINITY;
    socket.onopen = () => {
      openedMs = performance.now();
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      if (this.#socket === socket) this.#take(JSON.parse(event.data) as ServerMessage);
    };
    socket.onclose = (event) => {
      if (this.#socket !== socket) return;
      const isRefused = REFUSED_CODES.includes(event.code);
      if (performance.now() - openedMs > WORKS_MS) this.#waitMs = MIN_WAIT_MS;
      if (!isRefused) {
        this.#timer = setTimeout(() => this.open(), this.#waitMs * (0.5 + Math.random()));
        this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
      }
      this.#leave(isRefused ? "not signed in" : event.reason);
      if (isRefused) this.hooks.onSignIn(event.reason);
    };
  }

  /** Go on with another token. */
  signIn(token: string): void {
    if (!this.#socket) this.open();
    else this.#write({ type: "token", token });
  }

  /** Send a message; it is lost while the server does not serve this page. */
  send(message: PageMessage): void {
    if (this.#isServed) this.#write(message);
  }

  #take(message: ServerMessage): void {
    if (message.type === "sign_in") return this.#needToken(message.reason);
    if (message.type === "about" && !this.#isServed) {
      this.#isServed = true;
      this.hooks.onOpen();
    }
    this.hooks.onMessage(message);
  }

  #needToken(why: string): void {
    const token = why ? undefined : this.hooks.token();
    if (token !== undefined) return this.#write({ type: "token", token });
    if (!why) {
      this.#socket?.close(); // until there is a token
      this.#leave("not signed in");
    }
    this.hooks.onSignIn(why);
  }

  #leave(why: string): void {
    this.#socket = undefined;
    this.#isServed = false;
    this.hooks.onClose(why);
  }

  #write(message: PageMessage): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}
