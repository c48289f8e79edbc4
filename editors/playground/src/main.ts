/** Joins the parts of the page: the editor, the completer, the channel and the figures. */
import { Channel } from "./channel";
import { Completer } from "./completer";
import { Editor } from "./editor";
import type { ServerMessage } from "./messages";
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
  send: (message) => channel.send(message),
  language: () => sample().language,
  show: (offer) => {
    editor.show(offer);
    status.textContent = offer ? `Suggestion: ${offer.text.slice(0, SAID_CHARACTERS)}` : "";
  },
});
const panel = new Panel((message) => channel.send(message));
const signIn = new SignIn({ onToken: (token) => channel.signIn(token), onDone: () => editor.view.focus() });
const channel = new Channel({
  token: () => signIn.token,
  onOpen: () => {
    connected("connected", "connected");
    completer.back();
  },
  onSignIn: (why) => signIn.ask(why),
  onClose: (why) => {
    connected("away", why || "reconnecting");
    completer.away();
  },
  onMessage: take,
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
channel.open();

function take(message: ServerMessage): void {
  switch (message.type) {
    case "text":
      return completer.received(message.number, message.text);
    case "end":
      panel.ended(message);
      completer.ended(message);
      if (message.error) status.textContent = message.error;
      return;
    case "figures":
      return panel.figures(message);
    case "about":
      signIn.done();
      return panel.about(message);
    case "note":
      status.textContent = message.text;
  }
}

function connected(state: "connected" | "away", text: string): void {
  byId("connection").dataset.state = state;
  byId("connection-text").textContent = text;
}
