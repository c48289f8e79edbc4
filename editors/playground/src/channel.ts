/** The WebSocket to the server, which reconnects by itself. */
import type { PageMessage, ServerMessage } from "./messages";

const MIN_WAIT_MS = 500;
const MAX_WAIT_MS = 10_000;
/** A connection that is this old has worked, and the next wait is short again. */
const WORKS_MS = 5_000;

export interface ChannelHooks {
  onOpen(): void;
  onMessage(message: ServerMessage): void;
  /** The connection was lost or refused; `why` is the server's reason, if it gave one. */
  onClose(why: string): void;
}

export class Channel {
  #socket?: WebSocket;
  #waitMs = MIN_WAIT_MS;

  constructor(private readonly hooks: ChannelHooks) {}

  open(): void {
    const socket = new WebSocket(new URL("/playground/socket", location.href.replace(/^http/, "ws")));
    this.#socket = socket;
    let openedMs = Number.POSITIVE_INFINITY;
    socket.onopen = () => {
      openedMs = performance.now();
      this.hooks.onOpen();
    };
    socket.onmessage = (event: MessageEvent<string>) => this.hooks.onMessage(JSON.parse(event.data) as ServerMessage);
    socket.onclose = (event) => {
      this.#socket = undefined;
      if (performance.now() - openedMs > WORKS_MS) this.#waitMs = MIN_WAIT_MS;
      setTimeout(() => this.open(), this.#waitMs * (0.5 + Math.random()));
      this.#waitMs = Math.min(2 * this.#waitMs, MAX_WAIT_MS);
      this.hooks.onClose(event.reason);
    };
  }

  /** Send a message; it is lost without a connection. */
  send(message: PageMessage): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}
