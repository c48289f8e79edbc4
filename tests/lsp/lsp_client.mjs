// Talks to completion-lsp by VS Code's library of the protocol. Arguments: the folder node_modules, the server's address, the
// name of a scenario, then the command. Prints what it saw as one line of JSON.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";

const [modules, scenario, ...command] = process.argv.slice(2);
const lsp = createRequire(modules + "/")("vscode-languageserver-protocol/node");

const bridge = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const connection = lsp.createProtocolConnection(
  new lsp.StreamMessageReader(bridge.stdout),
  new lsp.StreamMessageWriter(bridge.stdin),
);
const messages = [];
connection.onNotification("window/showMessage", (params) => messages.push(params.message));
let configuration = null;
connection.onRequest("workspace/configuration", () => [configuration]);
connection.listen();

async function initialize(textDocument, options = {}) {
  const result = await connection.sendRequest("initialize", {
    processId: process.pid,
    rootUri: null,
    clientInfo: { name: "test" },
    capabilities: {
      textDocument,
      workspace: { configuration: true },
      notebookDocument: { synchronization: {} },
      ...options.capabilities,
    },
    initializationOptions: options.initializationOptions,
  });
  await connection.sendNotification("initialized", {});
  return result.capabilities;
}

const open = (uri, text, languageId = "python") =>
  connection.sendNotification("textDocument/didOpen", { textDocument: { uri, languageId, version: 1, text } });

let version = 1;
const change = (uri, start, end, text) =>
  connection.sendNotification("textDocument/didChange", {
    textDocument: { uri, version: ++version },
    contentChanges: [{ range: { start, end }, text }],
  });

const at = (line, character) => ({ line, character });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const INVOKED = 1;
const AUTOMATIC = 2;

const ask = (uri, position, triggerKind = AUTOMATIC, more = {}, ...token) =>
  connection.sendRequest(
    "textDocument/inlineCompletion",
    { textDocument: { uri }, position, context: { triggerKind, ...more } },
    ...token,
  );

// Until the bridge has a connection to the server there is nothing to show.
async function untilShown(uri, position, ...more) {
  for (;;) {
    const answer = await ask(uri, position, ...more);
    if (answer && answer.items.length) return answer.items[0];
    await pause(50);
  }
}

const askEdit = (uri, version, position) =>
  connection.sendRequest("textDocument/copilotInlineEdit", { textDocument: { uri, version }, position });

async function untilEdit(uri, version, position) {
  for (;;) {
    const { edits } = await askEdit(uri, version, position);
    if (edits.length) return edits[0];
    await pause(50);
  }
}

const inline = { inlineCompletion: {} };

const scenarios = {
  async details() {
    const capabilities = await initialize(inline);
    const uri = "file:///project/a.py";
    open(uri, "x = '😋'\r\ny = ");
    const item = await untilShown(uri, at(1, 4));
    connection.sendNotification("textDocument/didShowCompletion", { item });
    connection.sendNotification("textDocument/didFocus", { textDocument: { uri } });
    change(uri, at(1, 4), at(1, 4), "😋a");
    const along = await ask(uri, at(1, 7));
    connection.sendNotification("textDocument/didPartiallyAcceptCompletion", { item, acceptedLength: 3 });
    const rest = along.items[0];
    change(uri, rest.range.start, rest.range.end, rest.insertText);
    await connection.sendRequest("workspace/executeCommand", rest.command);
    const selected = await untilShown(uri, at(0, 0), INVOKED, {
      selectedCompletionInfo: { range: { start: at(0, 0), end: at(0, 1) }, text: "xyz" },
    });
    open("file:///project/.env", "KEY=");
    const secret = await ask("file:///project/.env", at(0, 4), INVOKED);
    return { capabilities, item, rest, selected, secret };
  },

  async edits() {
    const capabilities = await initialize(inline);
    const uri = "file:///project/a.py";
    open(uri, "x = '😋'\r\ntotal = x\r\nprint(x)\r\n");
    open("file:///project/.env", "KEY=1\nKEY=2\n");
    change("file:///project/.env", at(0, 4), at(0, 5), "3");
    change(uri, at(0, 0), at(0, 1), "y");
    const edit = await untilEdit(uri, version, at(0, 1));
    const again = await askEdit(uri, version, at(1, 0));
    const stale = await askEdit(uri, version - 1, at(0, 1));
    const secret = await askEdit("file:///project/.env", version - 1, at(0, 4));
    connection.sendNotification("textDocument/didShowInlineEdit", { item: edit });
    change(uri, edit.range.start, edit.range.end, edit.text);
    await connection.sendRequest("workspace/executeCommand", edit.command);
    const next = await askEdit(uri, version, at(2, 0));
    const malformed = await connection.sendRequest("textDocument/copilotInlineEdit", { position: "SECRET" });
    return { capabilities, edit, again, stale, secret, next, malformed, version };
  },

  async renames() {
    await initialize(inline);
    const uri = "file:///project/a.py";
    open(uri, "def area(width, height):\n    return width * height\n\nprint(height)\n");
    change(uri, at(0, 16), at(0, 22), "high");
    const edit = await untilEdit(uri, version, at(0, 20));
    change(uri, edit.range.start, edit.range.end, edit.text);
    await connection.sendRequest("workspace/executeCommand", edit.command);
    return { edit, next: await askEdit(uri, version, at(3, 0)) };
  },

  async menu() {
    const capabilities = await initialize({ completion: {} });
    const uri = "file:///project/a.py";
    open(uri, "if x:\n\tfoo");
    for (;;) {
      const answer = await connection.sendRequest("textDocument/completion", {
        textDocument: { uri },
        position: at(1, 4),
      });
      if (answer && answer.items.length) return { capabilities, answer };
      await pause(50);
    }
  },

  async notebook() {
    await initialize(inline);
    const [earlier, cell] = ["notebook-cell:/project/n.ipynb#c0", "notebook-cell:/project/n.ipynb#c1"];
    const notebookDocument = { uri: "file:///project/n.ipynb", notebookType: "jupyter-notebook", version: 1 };
    connection.sendNotification("notebookDocument/didOpen", {
      notebookDocument: { ...notebookDocument, cells: [earlier, cell].map((document) => ({ kind: 2, document })) },
      cellTextDocuments: [
        { uri: earlier, languageId: "python", version: 1, text: "import os" },
        { uri: cell, languageId: "python", version: 1, text: "a = " },
      ],
    });
    await untilShown(cell, at(0, 4));
    connection.sendNotification("notebookDocument/didChange", {
      notebookDocument: { uri: notebookDocument.uri, version: 2 },
      change: {
        cells: {
          textContent: [
            {
              document: { uri: cell, version: 2 },
              changes: [{ range: { start: at(0, 4), end: at(0, 4) }, text: "😋" }],
            },
          ],
        },
      },
    });
    return { item: await untilShown(cell, at(0, 6)) };
  },

  async malformed() {
    await initialize(inline);
    const uri = "file:///project/a.py";
    open(uri, "x = ");
    connection.sendNotification("textDocument/didChange", { textDocument: { uri }, contentChanges: ["SECRET"] });
    connection.sendNotification("textDocument/didChange", {
      textDocument: { uri: "file:///project/SECRET.py", version: 2 },
      contentChanges: [{ text: "SECRET" }],
    });
    connection.sendNotification("textDocument/didPartiallyAcceptCompletion", { item: "SECRET", acceptedLength: "SECRET" });
    const failure = await connection
      .sendRequest("workspace/executeCommand", { command: "SECRET", arguments: ["SECRET"] })
      .then(() => null, (error) => error.code);
    return { failure, item: await untilShown(uri, at(0, 4)) };
  },

  async settings() {
    configuration = { languagesOff: ["python"] };
    await initialize(inline, { initializationOptions: { multiLin: true, exclude: ["kept.*"] } });
    const uri = "file:///project/a.py";
    open(uri, "x = ");
    open("file:///project/a.go", "x = ", "go");
    open("file:///project/kept.go", "x = ", "go");
    await untilShown("file:///project/a.go", at(0, 4));
    const off = await ask(uri, at(0, 4));
    const kept = await ask("file:///project/kept.go", at(0, 4));
    configuration = { multiLine: false };
    await connection.sendNotification("workspace/didChangeConfiguration", { settings: null });
    return { messages, off, kept, on: await untilShown(uri, at(0, 4)) };
  },
};

const seen = await scenarios[scenario]();
await connection.sendRequest("shutdown");
await connection.sendNotification("exit");
console.log(JSON.stringify(seen));
connection.end();
