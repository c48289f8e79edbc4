// A client in Node that has the folder proto/ alone: node contract_client.mjs ADDRESS PROTO NODE_MODULES
// Prints the answers of a Session and the error of a call as one JSON object.
import { createRequire } from "node:module";

const [address, proto, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const includeDirs = [proto, `${proto}/third_party`];
const options = { includeDirs, keepCase: true, enums: String, longs: String, oneofs: true };
const loaded = loader.loadSync("completion/v1/completion.proto", options);
const { CompletionService } = grpc.loadPackageDefinition(loaded).completion.v1;
const client = new CompletionService(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("x-user-id", "ada");
const deadline = () => new Date(Date.now() + 60_000);

// Write one message after the other: each when the one before has its end or its refusal.
function session(messages) {
  return new Promise((resolve, reject) => {
    const answers = [];
    const call = client.Session(metadata, { deadline: deadline() });
    const next = () => (messages.length ? call.write(messages.shift()) : call.end());
    call.on("data", (answer) => {
      if (answer.event === "delta") return;
      answers.push(answer);
      next();
    });
    call.on("error", reject);
    call.on("end", () => resolve(answers));
    next();
  });
}

// The details of a failed call, from its trailer.
function details(error) {
  const root = new protobuf.Root();
  root.resolvePath = (_origin, target) => `${proto}/third_party/${target}`;
  root.loadSync(["google/rpc/status.proto", "google/rpc/error_details.proto"]);
  const [raw] = error.metadata.get("grpc-status-details-bin");
  const status = root.lookupType("google.rpc.Status").decode(raw);
  return status.details.map(({ type_url, value }) => {
    const type = root.lookupType(type_url.split("/")[1]);
    return { [type.name]: type.toObject(type.decode(value)) };
  });
}

function failure(request) {
  return new Promise((resolve) => {
    const call = client.Complete(request, metadata, { deadline: deadline() });
    call.on("data", () => {});
    call.on("error", (error) => resolve({ code: error.code, details: details(error) }));
  });
}

const answers = await session([
  { complete: { session_id: "s", sequence: 1, prefix: "x = ", timeout_ms: 60_000 } },
  { complete: { sequence: 2, max_tokens: -1 } },
  { complete: { sequence: 2 } },
]);
const error = await failure({ session_id: "s", sequence: 3, temperature: -1 });
client.close();
console.log(JSON.stringify({ answers, error }));
