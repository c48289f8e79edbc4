/** An editor's session: requests on one stream that lives as long as the editor, each with one answer. */
import { randomUUID } from "node:crypto";
import { status as Code } from "@grpc/grpc-js";
import { CompleteRequest, type End, FinishReason, ReportFeedbackRequest, ShedReason } from "completion-server-stubs";
import { connectionLost, errorOfEnd, ServiceError } from "./errors";
import { SessionStream, type StreamListener, type StreamSettings } from "./stream";

/** What the caller gives of a request; the session adds its id and the number. */
export type Question = Partial<Omit<CompleteRequest, "sessionId" | "sequence" | "timeoutMs">>;

/** A whole answer. It has an end or an error, or neither if the caller cancelled it. */
export interface Answer {
  sequence: number;
  text: string;
  end?: End;
  error?: ServiceError;
  /** From the request to the first text and to the end, as the editor saw it. */
  firstTextMs?: number;
  totalMs: number;
}

/** The text to show: that of a whole answer, "" of any other. Text that came before another end is incomplete. */
export function shownText(answer: Answer): string {
  const reason = answer.end?.finishReason;
  return reason === FinishReason.STOP || reason === FinishReason.LENGTH ? answer.text : "";
}

export class Session {
  readonly #id = randomUUID();
  readonly #stream: SessionStream;
  #lastSequence = 0;

  constructor(settings: StreamSettings, listener: StreamListener) {
    this.#stream = new SessionStream(settings, listener);
  }

  /** Whether a request can be sent now. */
  get isConnected(): boolean {
    return this.#stream.isConnected;
  }

  /**
   * Ask and wait for the whole answer; the promise never rejects. `onText` gets the text as it comes. An abort cancels
   * the request on the server.
   */
  complete(question: Question, timeoutMs: number, signal?: AbortSignal, onText = (_: string) => {}): Promise<Answer> {
    this.#lastSequence += 1;
    const sequence = this.#lastSequence;
    const message = CompleteRequest.fromPartial({ ...question, sessionId: this.#id, sequence, timeoutMs });
    return new Promise((resolve) => {
      const startedAtMs = performance.now();
      const elapsedMs = () => performance.now() - startedAtMs;
      const answer: Answer = { sequence, text: "", totalMs: 0 };
      const finish = (result: { end?: End; error?: ServiceError }) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        resolve({ ...answer, ...result, totalMs: elapsedMs() });
      };
      const abandon = (result: { error?: ServiceError }) => {
        this.#stream.discard(sequence);
        finish(result);
      };
      const abort = () => abandon({});
      const late = new ServiceError("the deadline passed first", Code.DEADLINE_EXCEEDED);
      const timer = setTimeout(() => abandon({ error: late }), timeoutMs);
      const add = (text: string) => {
        if (!text) return;
        answer.firstTextMs ??= elapsedMs();
        answer.text += text;
        onText(text);
      };
      if (signal?.aborted) return finish({});
      signal?.addEventListener("abort", abort);
      this.#stream.send(message, {
        onText: add,
        onEnd: (end) => {
          add(end.text);
          finish({ end, error: errorOfEnd(end) });
          if (end.shedReason === ShedReason.DRAINING) this.#stream.drop(connectionLost("the server is shutting down"));
        },
        onError: (error) => finish({ error }),
      });
    });
  }

  /** Report a reaction to an answer of this session. */
  report(feedback: Partial<ReportFeedbackRequest>): void {
    this.#stream.report(ReportFeedbackRequest.fromPartial({ ...feedback, sessionId: this.#id }));
  }

  /** Drop the connection and open another, as after a change of network. Open requests fail. */
  reconnect(): void {
    this.#stream.drop();
  }

  close(): void {
    this.#stream.close();
  }
}
