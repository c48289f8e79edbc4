/** The column of live figures and what an operator may change. */
import { divide, Sparkline } from "./chart";
import type { About, End, Figures, PageMessage } from "./messages";

const STAGES = ["queue_ms", "tokenise_ms", "prefill_ms", "decode_ms"] as const;
const RATES = ["answered", "superseded", "cancelled", "shed"] as const;
/** Figures that a rate is calculated from: those of the last 2 s. */
const NUM_RATED = 5;
const PUSH_S = 0.5;
/** The slider follows the server again so long after its user moved it. */
const OWN_MS = 1500;

export const byId = <E extends Element = HTMLElement>(id: string): E => {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found as Element as E;
};

const count = new Intl.NumberFormat("en");
const ms = (value: number) => (value < 9.95 ? value.toFixed(1) : Math.round(value).toString());

export class Panel {
  readonly #lines = new Map([...RATES, "live" as const].map((name) => [name, new Sparkline(byId(`${name}-line`), 1)]));
  readonly #slider = byId<HTMLInputElement>("k");
  readonly #auto = byId<HTMLButtonElement>("k-auto");
  readonly #simulate = byId<HTMLButtonElement>("simulate");
  #recent: Figures[] = [];
  #movedMs = Number.NEGATIVE_INFINITY;

  constructor(send: (message: PageMessage) => void) {
    this.#slider.addEventListener("input", () => {
      this.#movedMs = performance.now();
      byId("k-now").textContent = this.#slider.value;
    });
    this.#slider.addEventListener("change", () => send({ type: "set_k", k: this.#slider.valueAsNumber }));
    this.#auto.addEventListener("click", () => send({ type: "set_k", k: null }));
    this.#simulate.addEventListener("click", () => {
      if (this.#simulate.getAttribute("aria-disabled") === "true") return;
      send({ type: "simulate", on: this.#simulate.getAttribute("aria-pressed") !== "true" });
    });
  }

  about({ model, draft_model, version }: About): void {
    byId("model").textContent = model;
    byId("model").title = draft_model && `Draft model: ${draft_model}`;
    byId("version").textContent = version;
  }

  /** Show a request's stages; one that was superseded or cancelled has few. */
  ended(end: End): void {
    const stages = STAGES.map((each) => end[each] ?? 0);
    divide(byId("stages"), stages);
    STAGES.forEach((name, i) => (byId(name).textContent = ms(stages[i] ?? 0)));
    byId("total").textContent = ms(end.total_ms ?? 0);
    byId("reason").textContent = end.cache && end.cache !== "none" ? "known" : end.reason;
    const prompt = end.prompt_tokens ?? 0;
    const cached = end.cached_tokens ?? 0;
    divide(byId("tokens"), [cached, prompt - cached]);
    byId("cached").textContent = count.format(cached);
    byId("prompt").textContent = count.format(prompt);
    byId("generated").textContent = count.format(end.completion_tokens ?? 0);
  }

  figures(figures: Figures): void {
    this.#recent = [...this.#recent, figures].slice(-NUM_RATED);
    for (const name of RATES) {
      const first = this.#recent[0] ?? figures;
      const rate = Math.max(0, figures[name] - first[name]) / Math.max(PUSH_S, (this.#recent.length - 1) * PUSH_S);
      byId(name).textContent = rate < 9.95 ? rate.toFixed(1) : Math.round(rate).toString();
      this.#lines.get(name)?.add(rate);
    }
    this.#lines.get("live")?.add(figures.live);
    byId("live").textContent = count.format(figures.live);
    byId("queued").textContent = count.format(figures.queued);
    byId("slots").textContent = `${figures.running} / ${figures.slots}`;
    byId("sessions").textContent = count.format(figures.sessions);
    byId("ttft").textContent = figures.ttft_ms === null ? "–" : `${ms(figures.ttft_ms)} ms`;
    const share = figures.prompt_tokens ? figures.cached_tokens / figures.prompt_tokens : 0;
    byId("cached-share").textContent = figures.prompt_tokens ? `${Math.round(100 * share)} %` : "–";
    this.#speculation(figures);
    this.#editors(figures);
  }

  #speculation({ k, k_max, k_mode, k_locked, acceptance }: Figures): void {
    const why = k_max ? k_locked : "no draft model";
    this.#slider.max = String(k_max);
    this.#slider.disabled = why !== "";
    this.#auto.disabled = why !== "";
    if (performance.now() - this.#movedMs > OWN_MS) {
      this.#slider.value = String(k);
      byId("k-now").textContent = String(k);
    }
    byId("k-max").textContent = String(k_max);
    byId("k-mode").textContent = k_mode;
    this.#auto.setAttribute("aria-pressed", String(k_mode === "auto"));
    byId("acceptance").textContent = acceptance === null || !k_max ? "–" : `${Math.round(100 * acceptance)} %`;
    byId("k-why").textContent = why && `Locked: ${why}.`;
  }

  #editors({ editors_left_s, editors_locked, editors_failure }: Figures): void {
    const isOn = editors_left_s > 0;
    this.#simulate.setAttribute("aria-pressed", String(isOn));
    this.#simulate.setAttribute("aria-disabled", String(editors_locked !== ""));
    byId("simulate-text").textContent = isOn ? `Stop 50 editors (${Math.ceil(editors_left_s)} s left)` : "Let 50 editors type along";
    byId("simulate-why").textContent = editors_locked ? `Locked: ${editors_locked}.` : editors_failure && `Failed: ${editors_failure}`;
  }
}
