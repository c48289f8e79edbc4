/** The form for the token of a server with authentication. The browser forgets the token with the tab. */
import { byId } from "./panel";

const KEY = "playground-token";

export interface SignInHooks {
  onToken(): void;
  /** The token was taken, and the form that had the focus is hidden. */
  onDone(): void;
}

export class SignIn {
  readonly #form = byId<HTMLFormElement>("sign-in");
  readonly #input = byId<HTMLInputElement>("token");

  constructor(private readonly hooks: SignInHooks) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const token = this.#input.value.trim();
      if (!token) return;
      this.#input.value = "";
      sessionStorage.setItem(KEY, token);
      this.hooks.onToken();
    });
  }

  /** The token that was given last, unless it was refused. */
  get token(): string | undefined {
    return sessionStorage.getItem(KEY) ?? undefined;
  }

  /** Ask for a token; `why` says why the last one is of no use. */
  ask(why: string): void {
    sessionStorage.removeItem(KEY);
    this.#form.hidden = false;
    byId("sign-in-why").textContent = why ? `Another token is needed: ${why}.` : "This server needs a token.";
    if (!why || !document.activeElement?.closest(".cm-editor")) this.#input.focus(); // not while the user types
  }

  /** The server has taken the token. */
  done(): void {
    const hasFocus = this.#form.contains(document.activeElement);
    this.#form.hidden = true;
    if (hasFocus) this.hooks.onDone();
  }
}
