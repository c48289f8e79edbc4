// A plugin in Node that has the packed stubs alone: node stubs_client.cjs ADDRESS
// Prints the text of a completion on a Session, and the field that the server refuses in another, as JSON.
const { credentials } = require("@grpc/grpc-js");
const { CompleteRequest, CompletionServiceClient, FinishReason } = require("completion-server-stubs");

const client = new CompletionServiceClient(process.argv[2], credentials.createInsecure());
const call = client.session();
const ask = (fields) => call.write({ event: { $case: "complete", value: CompleteRequest.fromPartial(fields) } });

let text = "";
let finishReason;
ask({ sessionId: "s", sequence: 1, prefix: "x = ", timeoutMs: 60_000 });
call.on("data", ({ sequence, event }) => {
  text += sequence === 1 ? event.value.text : "";
  if (event.$case !== "end") return;
  if (sequence === 1) {
    finishReason = FinishReason[event.value.finishReason];
    ask({ sequence: 2, temperature: -1 });
  } else {
    const [{ field }] = event.value.error.fieldViolations;
    console.log(JSON.stringify({ text, finishReason, field }));
    call.end();
    client.close();
  }
});
