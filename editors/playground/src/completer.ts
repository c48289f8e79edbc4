/** Carries out what the policy of the editors' clients decides (docs/client-policy.md), with a channel and a timer. */
import { clip } from "../../vscode/src/policy/clip";
import type { Change, Decision, Extent, Text } from "../../vscode/src/policy/messages";
import { EditingPolicy } from "../../vscode/src/policy/policy";
import type { End, PageMessage } from "./messages";

/** Text to show at the cursor; `replaced` characters behind the cursor are a part of it. */
export interface Offer {
  request: number;
  text: string;
  replaced: number;
}

export interface CompleterHooks {
  send(message: PageMessage): void;
  show(offer: Offer | undefined): void;
  language(): string;
}

export class Completer {
  readonly #policy = new EditingPolicy();
  #text?: Text;
  #timer?: ReturnType<typeof setTimeout>;
  /** Reports on each request without its end: the server takes them once it knows the whole answer. */
  readonly #held = new Map<number, PageMessage[]>();

  constructor(private readonly hooks: CompleterHooks) {}

  changed(text: Text, change: Change): void {
    this.#at(text, (policy, nowMs) => policy.changed(text, change, nowMs));
  }

  moved(text: Text): void {
    this.#at(text, (policy, nowMs) => policy.moved(text, nowMs));
  }

  explicit(text: Text): void {
    this.#at(text, (policy, nowMs) => policy.explicit(text, nowMs));
  }

  accepted(request: number, text: Text, extent: Extent, inserted: string): void {
    this.#at(text, (policy, nowMs) => policy.accepted(request, text, extent, inserted, nowMs));
  }

  rejected(): void {
    this.#decide((policy, nowMs) => policy.rejected(nowMs));
  }

  left(): void {
    this.#decide((policy, nowMs) => policy.left(nowMs));
  }

  received(number: number, text: string): void {
    this.#decide((policy, nowMs) => policy.received(number, text, nowMs));
  }

  ended({ number, text, reason, retry_after_ms }: End): void {
    this.received(number, text);
    this.#decide((policy, nowMs) => policy.ended(number, reason, nowMs, retry_after_ms ?? undefined));
    for (const report of this.#held.get(number) ?? []) this.hooks.send(report);
    this.#held.delete(number);
  }

  away(): void {
    this.#held.clear();
    this.#decide((policy, nowMs) => policy.away(nowMs));
  }

  back(): void {
    this.#decide((policy, nowMs) => policy.back(nowMs));
  }

  #at(text: Text, event: (policy: EditingPolicy, nowMs: number) => Decision[]): void {
    this.#text = text;
    this.#decide(event);
  }

  #decide(event: (policy: EditingPolicy, nowMs: number) => Decision[]): void {
    for (const decision of event(this.#policy, performance.now())) this.#carryOut(decision);
  }

  #carryOut(decision: Decision): void {
    const { send, show } = this.hooks;
    switch (decision.kind) {
      case "ask":
        return this.#ask(decision);
      case "cancel":
        return send({ type: "cancel", number: decision.request });
      case "show":
        show(decision);
        return this.#decide((policy, nowMs) => policy.shown(decision.request, nowMs));
      case "hide":
        return show(undefined);
      case "wait":
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#decide((policy, nowMs) => policy.tick(nowMs)), decision.untilMs - performance.now());
        return;
      case "report":
        return this.#report(decision);
    }
  }

  #report({ request, feedback, characters }: Extract<Decision, { kind: "report" }>): void {
    const report: PageMessage = { type: "report", number: request, kind: feedback, characters };
    const held = this.#held.get(request);
    if (held) held.push(report);
    else this.hooks.send(report);
  }

  #ask({ request, trigger, mode }: Extract<Decision, { kind: "ask" }>): void {
    if (!this.#text) return;
    const { uri, before, after } = this.#text;
    const language = this.hooks.language();
    this.#held.set(request, []);
    this.hooks.send({ type: "ask", number: request, trigger, mode, uri, language, ...clip(before, after) });
  }
}
