/** Failures in one form, whether they came as the status of a call or inside an answer. Knows the contract alone. */
import { status as Code, type Metadata } from "@grpc/grpc-js";
import { type End, ErrorInfo, ErrorReason, FinishReason, RetryInfo, Status } from "completion-server-stubs";

/** The server ends an idle or old Session in good order: open another with the next request, without back-off. */
export const SESSION_ENDED = "SESSION_ENDED";

export class ServiceError extends Error {
  constructor(
    message: string,
    readonly code: Code,
    /** The contract's ErrorReason without its prefix, "" if there is none. */
    readonly reason = "",
    readonly retryAfterMs?: number,
    /** The fields of a request that the server refuses. Those of a call's status are not read. */
    readonly fields: readonly string[] = [],
  ) {
    super(message);
  }
}

/** There is no connection, or it was lost. */
export const connectionLost = (message: string) => new ServiceError(message, Code.UNAVAILABLE);

/** The error of a call that ended with a status other than OK. Its details are a google.rpc.Status in the trailer. */
export function errorOfStatus(status: { code: Code; details: string; metadata: Metadata }): ServiceError {
  const [raw] = status.metadata.get("grpc-status-details-bin");
  const details = decodeDetails(raw);
  return new ServiceError(status.details || Code[status.code], status.code, details.reason, details.retryAfterMs);
}

function decodeDetails(raw: unknown): { reason: string; retryAfterMs?: number } {
  const found: { reason: string; retryAfterMs?: number } = { reason: "" };
  if (!Buffer.isBuffer(raw)) return found;
  for (const { typeUrl, value } of Status.decode(raw).details) {
    if (typeUrl.endsWith("/google.rpc.ErrorInfo")) found.reason = ErrorInfo.decode(value).reason;
    if (typeUrl.endsWith("/google.rpc.RetryInfo")) {
      const delay = RetryInfo.decode(value).retryDelay;
      if (delay) found.retryAfterMs = delay.seconds * 1000 + delay.nanos / 1e6;
    }
  }
  return found;
}

/** The error of a request that failed, undefined if it did not: superseded, shed and cancelled are normal ends. */
export function errorOfEnd(end: End): ServiceError | undefined {
  if (end.finishReason === FinishReason.DEADLINE) {
    return new ServiceError("the deadline passed first", Code.DEADLINE_EXCEEDED);
  }
  if (end.finishReason !== FinishReason.ERROR) return undefined;
  const { code = Code.UNKNOWN, message = "no reason given", reason = ErrorReason.UNSPECIFIED } = end.error ?? {};
  const fields = end.error?.fieldViolations.map(({ field }) => field);
  const name = reason === ErrorReason.UNSPECIFIED ? "" : (ErrorReason[reason] ?? "");
  return new ServiceError(message, code, name, end.retryAfterMs, fields);
}
