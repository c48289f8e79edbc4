/** The texts to begin with; "|" is the cursor. */

export interface Sample {
  name: string;
  /** The contract's language id. */
  language: string;
  file: string;
  text: string;
}

export const SAMPLES: readonly Sample[] = [
  {
    name: "Python",
    language: "python",
    file: "stats.py",
    text: `"""Statistics of latencies."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    count: int
    mean: float
    largest: float


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of values."""
    |


def summary_of(values: Sequence[float]) -> Summary:
    return Summary(len(values), mean(values), max(values))


if __name__ == "__main__":
    print(summary_of([12.5, 9.75, 31.0]))
`,
  },
  {
    name: "TypeScript",
    language: "typescript",
    file: "debounce.ts",
    text: `/** Calls a function once no call came for some time. */
export class Debounced<T extends unknown[]> {
  #timer?: ReturnType<typeof setTimeout>;

  constructor(
    private readonly call: (...args: T) => void,
    private readonly waitMs: number,
  ) {}

  run(...args: T): void {
    |
  }

  cancel(): void {
    clearTimeout(this.#timer);
  }
}
`,
  },
  {
    name: "Go",
    language: "go",
    file: "queue.go",
    text: `package queue

import "sync"

// Queue is a first-in, first-out queue for several goroutines.
type Queue[T any] struct {
	mu    sync.Mutex
	items []T
}

// Push adds an item at the end.
func (q *Queue[T]) Push(item T) {
	|
}

// Len returns the number of items.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
`,
  },
];
