import type { Millis } from '../../core/clock.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import type { Client, Scenario } from './scenario.ts';
import { type NextCall, nextCallOf } from './traffic.ts';

export interface Caller {
  readonly index: number;
  readonly name: string;
  readonly client: Client;
  /** The names of its keys and their numbers, in the same order. */
  readonly keys: readonly string[];
  readonly keyIds: readonly number[];
  readonly random: Random;
  /** Undefined for a hog. */
  readonly next: NextCall | undefined;
  /** The time of its last call, made or scheduled. */
  lastAt: Millis;
}

/** Assigns numbers to key names: the log has numbers only. */
export class KeyNumbers {
  readonly #numbers = new Map<string, number>();

  of(name: string): number {
    const known = this.#numbers.get(name);
    if (known !== undefined) return known;
    this.#numbers.set(name, this.#numbers.size);
    return this.#numbers.size - 1;
  }

  get size(): number {
    return this.#numbers.size;
  }
}

export function createCallers({ clients, seed }: Scenario, numbers: KeyNumbers): Caller[] {
  const callers: Caller[] = [];
  for (const client of clients) {
    for (let n = 1; n <= client.count; n++) {
      const index = callers.length;
      const name = client.count === 1 ? client.name : `${client.name} ${n}`;
      const keys = keysOf(client, name);
      const random = seededRandom((seed * 7919 + index) * 31 + 17);
      callers.push({
        index,
        name,
        client,
        keys,
        keyIds: keys.map((key) => numbers.of(key)),
        random,
        next: nextCallOf(client.traffic, random),
        lastAt: client.fromMs,
      });
    }
  }
  return callers;
}

function keysOf({ key, keys }: Client, name: string): readonly string[] {
  const first = key ?? name;
  return keys === 1 ? [first] : Array.from({ length: keys }, (_, n) => `${first} ${n + 1}`);
}
