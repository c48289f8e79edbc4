/** Joins the parts of the page: the editor, the completer, the client and the figures. */
import { Client } from "./client";
import { Completer } from "./completer";
import { Editor } from "./editor";
import { byId, Panel } from "./panel";
import { SAMPLES } from "./samples";
import { SignIn } from "./sign_in";
import { followTheme } from "./theme";

const SAID_CHARACTERS = 200;

const nonce = document.querySelector<HTMLMetaElement>("meta[name=csp-nonce]")?.content ?? "";
const select = byId<HTMLSelectElement>("language");
const status = byId("status");
const sample = () => SAMPLES[select.selectedIndex] ?? SAMPLES[0]!;

const completer = new Completer({
  ask: (ask) => void client.ask(ask),
  cancel: (request) => client.cancel(request),
  report: (...report) => void client.report(...report),
  show: (offer) => {
    editor.show(offer);
    status.textContent = offer ? `Suggestion: ${offer.text.slice(0, SAID_CHARACTERS)}` : "";
  },
});
const panel = new Panel((k) => void client.setK(k));
const signIn = new SignIn({ onToken: () => void client.follow(), onDone: () => editor.view.focus() });
const client = new Client({
  token: () => signIn.token,
  document: () => ({ filepath: sample().file, language: sample().language }),
  onText: (request, text) => completer.received(request, text),
  onEnd: (end) => {
    panel.ended(end);
    completer.ended(end);
    if (end.error) status.textContent = end.error;
  },
  onStatus: (found) => {
    signIn.done();
    panel.status(found);
    if (connected("connected", "connected")) completer.back();
  },
  onSignIn: (why) => signIn.ask(why),
  onAway: (why) => {
    if (connected("away", why || "reconnecting")) completer.away();
  },
  onNote: (text) => {
    status.textContent = text;
  },
});

for (const { name } of SAMPLES) select.add(new Option(name));
const editor = new Editor(byId("editor"), sample(), completer, nonce);
byId("file").textContent = sample().file;
select.addEventListener("change", () => {
  editor.open(sample());
  byId("file").textContent = sample().file;
});
followTheme(byId("theme"));
editor.view.focus();
completer.away(); // until the server serves this page
void client.follow();

/** Show whether the server serves this page; return whether that has changed. */
function connected(state: "connected" | "away", text: string): boolean {
  const { dataset } = byId("connection");
  const before = dataset.state;
  dataset.state = state;
  if (byId("connection-text").textContent !== text) byId("connection-text").textContent = text;
  return before !== state;
}
