/** Messages and client of the contract between editors and completion-server, completion.v1. */

export * from "./completion/v1/completion.js";
/** The details of a failed call: its trailer grpc-status-details-bin is a google.rpc.Status. */
export { BadRequest, ErrorInfo, RetryInfo } from "./google/rpc/error_details.js";
export { Status } from "./google/rpc/status.js";
