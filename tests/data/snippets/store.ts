import { EventEmitter } from "node:events";

export interface Entry<T> {
  key: string;
  value: T;
  expiresAt?: number;
}

type Listener<T> = (entry: Entry<T>) => void;

export class Store<T> extends EventEmitter {
  private readonly entries = new Map<string, Entry<T>>();

  constructor(private readonly clock: () => number = Date.now) {
    super();
  }

  get(key: string): T | undefined {
    const entry = this.entries.get(key);
    if (entry === undefined) {
      return undefined;
    }
    if (entry.expiresAt !== undefined && entry.expiresAt <= this.clock()) {
      this.entries.delete(key);
      return undefined;
    }
    return entry.value;
  }

  set(key: string, value: T, ttlMs?: number): void {
    const entry: Entry<T> = {
      key,
      value,
      expiresAt: ttlMs === undefined ? undefined : this.clock() + ttlMs,
    };
    this.entries.set(key, entry);
    this.emit("set", entry);
  }

  onSet(listener: Listener<T>): () => void {
    this.on("set", listener);
    return () => {
      this.off("set", listener);
    };
  }
}

export async function load(urls: readonly string[]): Promise<Map<string, string>> {
  const found = await Promise.all(
    urls.map(async (url) => {
      const answer = await fetch(`${url}?format=json`, { headers: { accept: "application/json" } });
      return [url, await answer.text()] as const;
    }),
  );
  return new Map(found);
}
