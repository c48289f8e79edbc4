/** The column of live figures and what an operator may change. */
import { divide, Sparkline } from "./chart";
import type { End, Status } from "./client";

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
  #recent: Status[] = [];
  #movedMs = Number.NEGATIVE_INFINITY;

  constructor(setK: (k: number | null) => void) {
    this.#slider.addEventListener("input", () => {
      this.#movedMs = performance.now();
      byId("k-now").textContent = this.#slider.value;
    });
    this.#slider.addEventListener("change", () => setK(this.#slider.valueAsNumber));
    this.#auto.addEventListener("click", () => setK(null));
  }

  /** Show the stages of a request that the server has answered. */
  ended({ reason, timings, usage }: End): void {
    if (reason === "superseded" || reason === "cancelled") return;
    const { prompt_tokens: prompt = 0, completion_tokens: generated = 0 } = usage ?? {};
    const cached = usage?.prompt_tokens_details.cached_tokens ?? 0;
    divide(
      byId("stages"),
      STAGES.map((each) => timings?.[each] ?? 0),
    );
    for (const name of STAGES) byId(name).textContent = ms(timings?.[name] ?? 0);
    byId("total").textContent = ms(timings?.total_ms ?? 0);
    // The engine computes the last token of each prompt anew: only the completion cache knows all of one.
    byId("reason").textContent = prompt > 0 && cached === prompt ? "known" : reason;
    divide(byId("tokens"), [cached, prompt - cached]);
    byId("cached").textContent = count.format(cached);
    byId("prompt").textContent = count.format(prompt);
    byId("generated").textContent = count.format(generated);
  }

  status(figures: Status): void {
    byId("model").textContent = figures.model;
    byId("model").title = figures.draft_model && `Draft model: ${figures.draft_model}`;
    byId("version").textContent = figures.version;
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
  }

  #speculation({ k, k_max, k_mode, k_locked, acceptance }: Status): void {
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
}
