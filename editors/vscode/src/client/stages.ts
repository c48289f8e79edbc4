/** The stages of a request in words, without its text. */
import { CacheLevel, FinishReason, ShedReason } from "completion-server-stubs";
import type { Answer } from "./session";

const name = (value: string | undefined) => (value ?? "unknown").toLowerCase().replaceAll("_", " ");
const ms = (value: number) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

/** How a request ended, such as "stop" or "shed (overload)". */
export function outcomeOf({ end, error }: Answer): string {
  if (error) return `failed: ${error.message}`;
  if (!end) return "cancelled";
  const reason = name(FinishReason[end.finishReason]);
  if (end.finishReason !== FinishReason.SHED) return reason;
  return `${reason} (${[name(ShedReason[end.shedReason]), end.limit?.name].filter(Boolean).join(", ")})`;
}

/** Lines that explain where the time of a request went. */
export function stagesOf(answer: Answer): string[] {
  const { end, firstTextMs, totalMs } = answer;
  const first = firstTextMs === undefined ? "no text" : `first text after ${ms(firstTextMs)}`;
  const lines = [
    `request ${answer.sequence}: ${outcomeOf(answer)}`,
    `in the editor: ${first}, end after ${ms(totalMs)}`,
  ];
  if (end?.timings) {
    const { queueMs, tokeniseMs, prefillMs, decodeMs, totalMs: serverMs } = end.timings;
    const stages = `queue ${ms(queueMs)}, tokenise ${ms(tokeniseMs)}, prefill ${ms(prefillMs)}, decode ${ms(decodeMs)}`;
    lines.push(`on the server: ${stages}, total ${ms(serverMs)}`);
  }
  if (end?.usage) {
    const { promptTokens, cachedPromptTokens, completionTokens, draftedTokens, acceptedDraftTokens, cacheLevel } =
      end.usage;
    lines.push(
      `tokens: prompt ${promptTokens} (${cachedPromptTokens} from the prefix cache), completion ${completionTokens}`,
    );
    if (draftedTokens) lines.push(`speculation: ${acceptedDraftTokens} of ${draftedTokens} drafted tokens accepted`);
    if (cacheLevel > CacheLevel.NONE)
      lines.push(`answered from the completion cache (${name(CacheLevel[cacheLevel])})`);
  }
  return lines;
}
