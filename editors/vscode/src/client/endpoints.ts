/** Addresses of servers, their credentials, and which of several to use. */
import { createHash } from "node:crypto";
import { type ChannelCredentials, type ClientOptions, credentials, Metadata } from "@grpc/grpc-js";

const DEFAULT_PORT = 50051;
const PASSED_OVER_FIRST_MS = 1_000;
const PASSED_OVER_MOST_MS = 30_000;

/** PEM texts. The connection is encrypted if this is given, also without any of them. */
export interface Tls {
  ca?: Buffer;
  certificate?: Buffer;
  key?: Buffer;
}

export interface Caller {
  user?: string;
  tenant?: string;
  token?: string;
}

/** The addresses of "a:1, b:2"; the default port is added. Throws an Error that names what can't be used. */
export function parseAddresses(text: string): string[] {
  const addresses = text.split(",").map((each) => each.trim());
  for (const address of addresses) {
    if (!/^([\w.-]+|\[[\da-fA-F:]+\])(:\d{1,5})?$|^unix:./.test(address)) {
      throw new Error(`address: expected HOST:PORT[,HOST:PORT...], got "${text}"`);
    }
  }
  const complete = addresses.map((each) => (/:\d+$|^unix:/.test(each) ? each : `${each}:${DEFAULT_PORT}`));
  return [...new Set(complete)];
}

export const isLocal = (address: string) => /^(127(\.\d{1,3}){3}:\d+$|localhost:|\[::1\]:|unix:)/.test(address);

/** What the file of each setting has. Without this check gRPC would take another file for one without authorities. */
const PEM_LABELS: Record<keyof Tls, string> = { ca: "CERTIFICATE", certificate: "CERTIFICATE", key: "PRIVATE KEY" };

/** Throws an Error that names the setting whose file is not PEM. */
export function channelCredentials(tls?: Tls): ChannelCredentials {
  if (!tls) return credentials.createInsecure();
  for (const name of ["ca", "certificate", "key"] as const) {
    const label = new RegExp(`-----BEGIN [A-Z\\d ]*${PEM_LABELS[name]}-----`);
    const text = tls[name]?.toString("latin1");
    if (text !== undefined && !label.test(text))
      throw new Error(`tls.${name}: expected a PEM file with a ${PEM_LABELS[name]}`);
  }
  try {
    return credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.certificate ?? null);
  } catch (error) {
    throw new Error(`tls: ${error instanceof Error ? error.message : error}`);
  }
}

export function channelOptions(address: string): ClientOptions {
  return {
    // The session's back-off decides when to try again; gRPC's own must not delay that.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.enable_retries": 0,
    // A connection that broke without a word is noticed after 25 s. The server allows a ping every 10 s.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 5_000,
    // Without this, a new client would get the connection of the one that it replaces.
    "grpc.use_local_subchannel_pool": 1,
    // No proxy can reach a local address.
    ...(isLocal(address) ? { "grpc.enable_http_proxy": 0 } : {}),
  };
}

/** Throws an Error that names what metadata can't hold. gRPC's own would tell the token. */
export function checkCaller(caller: Caller): void {
  for (const [name, value] of Object.entries(caller)) {
    if (value && !/^[ -~]*$/.test(value)) throw new Error(`${name}: expected ASCII characters`);
  }
}

/** Throws an Error if the token would leave this machine in plain text. */
export function checkTransport(addresses: readonly string[], isEncrypted: boolean): void {
  const plain = isEncrypted ? undefined : addresses.find((each) => !isLocal(each));
  if (plain) throw new Error(`a token is not sent to ${plain} without TLS: set completionServer.tls.enabled`);
}

/** The metadata that names a caller. A token is never sent in plain text to another machine. */
export function callerMetadata(caller: Caller, address: string, isEncrypted: boolean): Metadata {
  const metadata = new Metadata();
  if (caller.user) metadata.set("x-user-id", caller.user);
  if (caller.tenant) metadata.set("x-tenant-id", caller.tenant);
  if (caller.token && (isEncrypted || isLocal(address))) metadata.set("authorization", `Bearer ${caller.token}`);
  return metadata;
}

/**
 * Chooses among several replicas. Each user has an order of their own, so that users are spread evenly and one user's
 * documents stay in the cache of one replica (rendezvous hashing). A replica that failed is passed over for a time that
 * doubles from 1 s to 30 s.
 */
export class EndpointChoice {
  readonly #order: string[];
  readonly #failures = new Map<string, { count: number; usableAtMs: number }>();

  constructor(addresses: readonly string[], user: string) {
    const weight = (address: string) => createHash("sha256").update(`${address}\0${user}`).digest("hex");
    this.#order = [...addresses].sort((a, b) => (weight(a) < weight(b) ? -1 : 1));
  }

  /** The first usable address in the user's order; if there is none, the one that is usable soonest. */
  choose(nowMs: number): string {
    const usableAtMs = (address: string) => Math.max(nowMs, this.#failures.get(address)?.usableAtMs ?? 0);
    return this.#order.reduce((best, each) => (usableAtMs(each) < usableAtMs(best) ? each : best));
  }

  failed(address: string, nowMs: number, retryAfterMs = 0): void {
    const count = (this.#failures.get(address)?.count ?? 0) + 1;
    const passedOverMs = Math.min(PASSED_OVER_MOST_MS, PASSED_OVER_FIRST_MS * 2 ** (count - 1));
    this.#failures.set(address, { count, usableAtMs: nowMs + Math.max(passedOverMs, retryAfterMs) });
  }

  answered(address: string): void {
    this.#failures.delete(address);
  }
}
