// Uses the extension's session by itself: node session_client.cjs SESSION_JS SETTINGS NUM_REQUESTS
// Asks for one completion after the other; prints the texts, the errors and the events of the stream as JSON.
const { readFileSync } = require("node:fs");
const [file, settings, numRequests] = process.argv.slice(2);
const { Session, shownText } = require(file);

const { addresses, tls } = JSON.parse(settings);
const pem = (path) => readFileSync(path);
const events = [];
const listener = {
  onConnected: () => events.push("connected"),
  onLost: (error) => events.push(`lost: ${error.message}`),
  onRefused: (message) => events.push(`refused: ${message}`),
};
const files = tls && { ca: pem(tls.ca), certificate: pem(tls.certificate), key: pem(tls.key) };
const session = new Session({ addresses, tls: files, caller: { user: "ada" } }, listener);

async function main() {
  while (!events.includes("connected")) await new Promise((resolve) => setTimeout(resolve, 10));
  const texts = [];
  const errors = [];
  for (let number = 0; number < Number(numRequests); number++) {
    const answer = await session.complete({ prefix: `x${number} = ` }, 60_000);
    texts.push(shownText(answer));
    if (answer.error) errors.push(answer.error.message);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  session.close();
  console.log(JSON.stringify({ texts, errors, events }));
}
void main();
