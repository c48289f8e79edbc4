/** The entry point: joins the session, the completer and VS Code, and starts anew when settings or the token change. */
import { FinishReason } from "completion-server-stubs";
import * as vscode from "vscode";
import { type Answer, Session } from "./client/session";
import { outcomeOf, stagesOf } from "./client/stages";
import type { StreamListener } from "./client/stream";
import { TokenError } from "./client/token";
import { Completer } from "./completer";
import { Provider } from "./editor/provider";
import { readSettings, readStreamSettings, SECTION, type Settings } from "./editor/settings";
import { type RunningNextEdits, startNextEdits } from "./editor/startNextEdits";
import { StatusBar } from "./editor/statusBar";
import { survivalFeedback } from "./editor/survival";
import { earlierCells } from "./editor/texts";
import type { Text } from "./policy/messages";
import { SnippetRing } from "./policy/snippets";
import { Status } from "./policy/status";

const TOKEN = "token";
const SET_TOKEN = "Set Token";

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const extension = new Extension(context);
  const command = (name: string, run: () => unknown) => vscode.commands.registerCommand(`${SECTION}.${name}`, run);
  context.subscriptions.push(
    extension,
    command("showLastRequest", () => extension.showLastRequest()),
    command("setToken", () => extension.setToken()),
    command("toggleLanguage", () => extension.toggleLanguage()),
    command("reconnect", () => extension.restart()),
    command("dismiss", () => extension.dismiss()),
    command("acceptNextEdit", () => extension.nextEdits?.view.accept()),
    command("rejectNextEdit", () => extension.nextEdits?.view.reject()),
    context.secrets.onDidChange(() => extension.restart()),
    vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration(SECTION) && extension.restart()),
    vscode.workspace.onDidGrantWorkspaceTrust(() => extension.restart()),
    vscode.window.onDidChangeActiveTextEditor(() => extension.updateStatus()),
  );
  await extension.restart();
}

/** What lives from one change of the settings to the next. */
interface Running {
  provider: Provider;
  nextEdits?: RunningNextEdits;
  all: vscode.Disposable;
}

class Extension implements vscode.Disposable {
  readonly #log = vscode.window.createOutputChannel("Completions", { log: true });
  readonly #statusBar = new StatusBar(`${SECTION}.showLastRequest`, `${SECTION}.setToken`);
  #status = new Status();
  #running?: Running;
  #lastAnswer?: Answer;
  #numStarts = 0;
  /** Whether the person was asked for a token since the last start. */
  #hasAskedToken = false;
  /** Why nothing runs, such as a setting that can't be used. */
  #whyStopped?: string;

  constructor(private readonly context: vscode.ExtensionContext) {}

  get nextEdits(): RunningNextEdits | undefined {
    return this.#running?.nextEdits;
  }

  async restart(): Promise<void> {
    const start = ++this.#numStarts;
    this.#running?.all.dispose();
    this.#running = this.#whyStopped = undefined;
    this.#hasAskedToken = false;
    this.#status = new Status();
    const token = await this.context.secrets.get(TOKEN);
    if (start !== this.#numStarts) return; // another change came meanwhile
    const settings = readSettings();
    if (!vscode.workspace.isTrusted && !settings.runsUntrusted) this.#whyStopped = "the workspace is not trusted";
    else this.#start(settings, token);
    this.updateStatus();
  }

  #start(settings: Settings, token: string | undefined): void {
    let session: Session;
    const snippets = new SnippetRing(); // the settings may forbid files that were allowed
    const describe = (text: Text) => ({
      languageId: vscode.window.activeTextEditor?.document.languageId ?? "",
      snippets: settings.sendsSnippets ? snippets.choose(text) : [],
    });
    const completer = new Completer(
      {
        session: () => session,
        describe: (text) => ({ ...describe(text), earlier: earlierCells(text.uri) }),
        onAnswer: (answer) => this.#answered(answer),
        onBusy: (isBusy) => this.nextEdits?.edits.busy(isBusy),
        onAccepted: () => this.nextEdits?.edits.completionAccepted(),
      },
      settings.policy,
      settings.multiLine,
    );
    try {
      session = new Session(readStreamSettings(token), this.#listener(completer));
    } catch (error) {
      this.#whyStopped = error instanceof Error ? error.message : String(error);
      this.#log.error(this.#whyStopped);
      return;
    }
    const onAnswer = (answer: Answer) => this.#log.debug(`next edit ${answer.sequence}: ${outcomeOf(answer)}`);
    const hooks = { session: () => session, describe, onAnswer };
    const nextEdits = settings.asksNextEdits ? startNextEdits(settings, hooks) : undefined;
    const survival = survivalFeedback(hooks.session, (request) => completer.sequenceOf(request));
    const provider = new Provider(completer, survival, snippets, settings, () => nextEdits?.view.isApplying ?? false);
    const parts = [provider.register(), survival, completer, { dispose: () => session.close() }];
    if (nextEdits) parts.unshift(nextEdits.all);
    this.#running = { provider, nextEdits, all: vscode.Disposable.from(...parts) };
  }

  #listener(completer: Completer): StreamListener {
    completer.away();
    return {
      onConnected: (address) => {
        this.#log.info(`connected to ${address}`);
        this.#status.connection = { state: "connected", address };
        completer.back();
        this.nextEdits?.edits.back();
        this.updateStatus();
      },
      onLost: (error) => {
        this.#log.warn(`not connected: ${error.message}`);
        const isUnknown = error instanceof TokenError;
        this.#status.connection = { state: isUnknown ? "unknown" : "away", why: error.message };
        if (isUnknown) void this.#askForToken(error.message);
        completer.away();
        this.nextEdits?.edits.away();
        this.updateStatus();
      },
      onRefused: (message) => this.#log.debug(`the server refused a message: ${message}`),
    };
  }

  #answered(answer: Answer): void {
    if (answer.end || answer.error) this.#lastAnswer = answer;
    const outcome = outcomeOf(answer);
    const reason = answer.end?.finishReason;
    if (answer.error || reason === FinishReason.SHED) this.#status.failed(outcome);
    else if (reason === FinishReason.STOP || reason === FinishReason.LENGTH) this.#status.answered(answer.totalMs);
    this.#log.debug(`request ${answer.sequence}: ${outcome}, ${Math.round(answer.totalMs)} ms`);
    this.updateStatus();
  }

  updateStatus(): void {
    this.#statusBar.update(this.#status, this.#whyStopped ?? this.#running?.provider.whyOff);
  }

  async showLastRequest(): Promise<void> {
    const lines = this.#lastAnswer ? stagesOf(this.#lastAnswer) : ["no request has been answered yet"];
    await vscode.window.showQuickPick(lines, { title: "Completions: Stages of the Last Request" });
  }

  /** Say once that the server wants a token. The session itself waits before it presents it again. */
  async #askForToken(why: string): Promise<void> {
    if (this.#hasAskedToken) return;
    this.#hasAskedToken = true;
    const choice = await vscode.window.showWarningMessage(`No completions: ${why}`, SET_TOKEN);
    if (choice === SET_TOKEN) await this.setToken();
  }

  async setToken(): Promise<void> {
    const prompt = "Token for the completion server. An empty one removes it.";
    const token = await vscode.window.showInputBox({ prompt, password: true, ignoreFocusOut: true });
    if (token) await this.context.secrets.store(TOKEN, token);
    else if (token === "") await this.context.secrets.delete(TOKEN);
  }

  async toggleLanguage(): Promise<void> {
    const language = vscode.window.activeTextEditor?.document.languageId;
    if (!language) return;
    const { languages } = readSettings().rules;
    const isOn = languages[language] ?? languages["*"] ?? true;
    const configuration = vscode.workspace.getConfiguration(SECTION);
    await configuration.update("languages", { ...languages, [language]: !isOn }, vscode.ConfigurationTarget.Global);
  }

  async dismiss(): Promise<void> {
    this.#running?.provider.dismiss();
    await vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
  }

  dispose(): void {
    this.#running?.all.dispose();
    this.#statusBar.dispose();
    this.#log.dispose();
  }
}
