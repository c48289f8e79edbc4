/** Carries out what the policy of the editors' clients decides (docs/client-policy.md), with a client and a timer. */
import { clip } from "../../vscode/src/policy/clip";
import type { Change, Decision, Extent, FeedbackName, Text } from "../../vscode/src/policy/messages";
import { EditingPolicy } from "../../vscode/src/policy/policy";
import type { Ask, End } from "./client";

/** Text to show at the cursor; `replaced` characters behind the cursor are a part of it. */
export interface Offer {
  request: number;
  text: string;
  replaced: number;
}

export interface CompleterHooks {
  ask(ask: Ask): void;
  cancel(request: number): void;
  report(request: number, feedback: FeedbackName, characters: number): void;
  show(offer: Offer | undefined): void;
}

export class Completer {
  readonly #policy = new EditingPolicy();
  #text?: Text;
  #timer?: ReturnType<typeof setTimeout>;
  /** Reports on each request without its end: the server takes them once it knows the whole answer. */
  readonly #held = new Map<number, [FeedbackName, number][]>();

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

  received(request: number, text: string): void {
    this.#decide((policy, nowMs) => policy.received(request, text, nowMs));
  }

  ended({ request, reason, retryAfterMs }: End): void {
    this.#decide((policy, nowMs) => policy.ended(request, reason, nowMs, retryAfterMs));
    for (const report of this.#held.get(request) ?? []) this.hooks.report(request, ...report);
    this.#held.delete(request);
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
    const { cancel, show } = this.hooks;
    switch (decision.kind) {
      case "ask":
        return this.#ask(decision);
      case "cancel":
        return cancel(decision.request);
      case "show":
        show(decision);
        return this.#decide((policy, nowMs) => policy.shown(decision.request, nowMs));
      case "hide":
        return show(undefined);
      case "wait":
        clearTimeout(this.#timer);
        this.#timer = setTimeout(
          () => this.#decide((policy, nowMs) => policy.tick(nowMs)),
          decision.untilMs - performance.now(),
        );
        return;
      case "report":
        return this.#report(decision);
    }
  }

  #report({ request, feedback, characters }: Extract<Decision, { kind: "report" }>): void {
    const held = this.#held.get(request);
    if (held) held.push([feedback, characters]);
    else this.hooks.report(request, feedback, characters);
  }

  #ask({ request, mode }: Extract<Decision, { kind: "ask" }>): void {
    if (!this.#text) return;
    this.#held.set(request, []);
    this.hooks.ask({ request, mode, ...clip(this.#text.before, this.#text.after) });
  }
}
