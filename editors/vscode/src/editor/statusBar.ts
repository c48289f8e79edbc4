/** The item in the status bar. */
import * as vscode from "vscode";
import type { Status } from "../policy/status";

export class StatusBar implements vscode.Disposable {
  readonly #item = vscode.window.createStatusBarItem("completionServer.status", vscode.StatusBarAlignment.Right, 100);

  /** The item runs a command, and another while the person has to sign in. */
  constructor(
    private readonly command: string,
    private readonly signIn: string,
  ) {
    this.#item.name = "Completions";
    this.#item.show();
  }

  update(status: Status, whyOff: string | undefined): void {
    const { text, tooltip, isWarning } = status.textFor(whyOff);
    this.#item.text = text;
    this.#item.tooltip = tooltip;
    this.#item.command = status.connection.state === "unknown" ? this.signIn : this.command;
    this.#item.backgroundColor = isWarning ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
  }

  dispose(): void {
    this.#item.dispose();
  }
}
