/**
 * Waiting fairly: one line for all processes, first come first served, kept by Redis.
 *
 *     join ──▶ in line ──▶ told that it is first, and when it may ask ──▶ asks ──▶ in
 *                │                                                         │
 *                └── gives up: leaves                whoever is next is told ──▶ …
 *
 * Without it each process has a line of its own, and whose asks first is luck. Here a permit costs one
 * call: whoever gets in wakes the next, by a message that says in how many milliseconds its turn comes.
 * Messages may be lost, so each process also asks once a second who is first; the same call says that
 * it is alive, and whoever stands first and belongs to a process that has gone silent is skipped. It also
 * finds out that Redis has forgotten the line, or skipped somebody who is still there (who then joins
 * again), and places in line that nobody here waits for any more.
 *
 * While Redis is out of reach, what stands in for it lets in whom it may; the others stay.
 */

import { alarm, type Clock, type Millis } from '../../clock.ts';
import { NEVER } from '../../decision.ts';
import type { Random } from '../../random.ts';
import type { FairEntry, FairPatience } from '../remote.ts';
import { decisionOf } from './call.ts';
import type { Subscriber } from './client.ts';
import type { Pipe } from './pipe.ts';
import { STALE_MS } from './script.ts';

const BEAT_MS: Millis = STALE_MS / 3;

interface Waiter {
  readonly id: string;
  readonly cost: number;
  readonly line: Line;
  readonly finish: (entry: FairEntry) => void;
  /** Whether it is asking right now. */
  isAsking: boolean;
  isWaiting: boolean;
  cancel: (() => void) | undefined;
}

interface Line {
  /** The key as Redis knows it. */
  readonly key: string;
  readonly waiters: Map<string, Waiter>;
}

export interface FairOptions {
  readonly pipe: Pipe;
  readonly clock: Clock;
  readonly random: Random;
  readonly subscriber: Subscriber;
  readonly waitersMax: number;
  /** What a call is told while Redis is out of reach. */
  readonly standIn: (key: string, cost: number) => FairEntry;
}

export class FairRoom {
  readonly #options: FairOptions;
  /** Of this process, in this limiter: nobody else's. */
  readonly #process: string;
  readonly #lines = new Map<string, Line>();
  /** All of them, by id. */
  readonly #waiters = new Map<string, Waiter>();
  #joined = 0;
  #beat: (() => void) | undefined;
  #isListening = false;

  constructor(options: FairOptions) {
    this.#options = options;
    const letters = () => options.random().toString(36).slice(2, 10);
    this.#process = `${letters()}${letters()}`;
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Waits for a permit; rejects only if the signal aborts. `key` is as Redis knows it. */
  async enter(key: string, cost: number, patience: FairPatience): Promise<FairEntry> {
    const { signal, maxWaitMs } = patience;
    signal?.throwIfAborted();
    if (this.size >= this.#options.waitersMax) {
      return { verdict: 'deny', retryAfterMs: 0, reason: 'queue-full' };
    }
    this.#listen();
    return new Promise((resolve, reject) => {
      const { clock } = this.#options;
      const line = this.#lines.get(key) ?? this.#newLine(key);
      let stop = (): void => {};
      const leave = (): void => {
        waiter.isWaiting = false;
        waiter.cancel?.();
        stop();
        signal?.removeEventListener('abort', onAbort);
        this.#forget(waiter);
      };
      const waiter: Waiter = {
        id: `${this.#process}/${++this.#joined}/${cost}`,
        cost,
        line,
        isAsking: false,
        isWaiting: true,
        cancel: undefined,
        finish: (entry) => {
          leave();
          resolve(entry);
        },
      };
      const giveUp = (): void => {
        this.#leaveLine(waiter);
        waiter.finish({ verdict: 'deny', retryAfterMs: 0, reason: 'too-long' });
      };
      const onAbort = (): void => {
        this.#leaveLine(waiter);
        leave();
        reject(signal?.reason);
      };
      if (maxWaitMs < Infinity) stop = alarm(clock, clock.now() + maxWaitMs, giveUp, true);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.set(waiter.id, waiter);
      line.waiters.set(waiter.id, waiter);
      this.#ask(waiter);
      this.#beatLater();
    });
  }

  async close(): Promise<void> {
    this.#beat?.();
    this.#beat = undefined;
    await this.#options.subscriber.stop();
  }

  #newLine(key: string): Line {
    const line: Line = { key, waiters: new Map() };
    this.#lines.set(key, line);
    return line;
  }

  #forget({ id, line }: Waiter): void {
    this.#waiters.delete(id);
    line.waiters.delete(id);
    if (line.waiters.size === 0) this.#lines.delete(line.key);
  }

  /** Hears whose turn it is, from whoever had its turn before. Nobody waits for that: the beat makes up for it. */
  #listen(): void {
    if (this.#isListening) return;
    this.#isListening = true;
    const hear = (message: string): void => {
      const [id, ms] = message.split(' ');
      this.#turn(this.#waiters.get(id), Number(ms));
    };
    this.#options.subscriber.listen(`sluice:turn:${this.#process}`, hear).then(
      () => this.hurry(), // whoever was told before anybody listened
      () => {
        this.#isListening = false; // the next beat tries again
      },
    );
  }

  /** Asks at once who is first: Redis is back, or can be heard. */
  hurry(): void {
    for (const line of this.#lines.values()) this.#beatFor(line);
  }

  /** Its turn has come, and it may ask in so long. */
  #turn(waiter: Waiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting || waiter.isAsking) return;
    const { clock } = this.#options;
    waiter.cancel?.();
    const ask = (): void => {
      waiter.cancel = undefined;
      this.#ask(waiter);
    };
    waiter.cancel = alarm(clock, clock.now() + ms, ask, true);
  }

  async #ask(waiter: Waiter): Promise<void> {
    if (!waiter.isWaiting || waiter.isAsking) return;
    waiter.isAsking = true;
    const { key } = waiter.line;
    try {
      const { told, at } = await this.#options.pipe.send(key, `f${waiter.id} ${waiter.cost}`);
      waiter.isAsking = false;
      if (told !== '-') this.#answered(waiter, decisionOf(told), at);
    } catch {
      waiter.isAsking = false;
      this.#makeDo(waiter);
    }
  }

  /** Redis is out of reach: true if it is let in all the same. Else it stays, and asks again before long. */
  #makeDo(waiter: Waiter): boolean {
    if (!waiter.isWaiting || waiter.isAsking) return true;
    const entry = this.#options.standIn(waiter.line.key, waiter.cost);
    if (entry.verdict === 'allow' || entry.retryAfterMs === NEVER) waiter.finish(entry);
    else this.#turn(waiter, Math.min(entry.retryAfterMs, BEAT_MS));
    return entry.verdict === 'allow';
  }

  #answered(waiter: Waiter, decision: ReturnType<typeof decisionOf>, at: Millis): void {
    if (decision.verdict !== 'deny') {
      if (waiter.isWaiting) waiter.finish({ verdict: 'allow', dueAt: at, isMakeshift: false });
      else this.#giveBack(waiter, at); // it gave up while the answer was under way
    } else if (decision.retryAfterMs === NEVER) {
      if (waiter.isWaiting) waiter.finish({ ...decision, reason: 'never' });
    } else {
      this.#turn(waiter, decision.retryAfterMs); // it is first, and came too early
    }
  }

  #giveBack({ line, cost }: Waiter, at: Millis): void {
    const text = `signored ${cost} ${cost} ${at}`;
    this.#options.pipe.send(line.key, text).catch(() => {});
  }

  #leaveLine({ id, line }: Pick<Waiter, 'id' | 'line'>): void {
    this.#options.pipe.send(line.key, `x${id}`).catch(() => {}); // a beat finds what is left there
  }

  /** While somebody waits: says that this process is alive, and asks who is first. */
  #beatLater(): void {
    if (this.#beat) return;
    const { clock } = this.#options;
    const beat = async (): Promise<void> => {
      this.#beat = undefined;
      this.#listen();
      await Promise.all([...this.#lines.values()].map((line) => this.#beatFor(line)));
      if (this.size > 0) this.#beatLater();
    };
    this.#beat = alarm(clock, clock.now() + BEAT_MS, beat, true);
  }

  async #beatFor(line: Line): Promise<void> {
    const { key, waiters } = line;
    try {
      const { told } = await this.#options.pipe.send(key, `b${this.#process} ${standing(line)}`);
      if (told === '-') {
        for (const waiter of waiters.values()) this.#ask(waiter); // join again: who still stands there keeps its place
        return;
      }
      const [first, ms] = String(told).split(' ');
      const waiter = waiters.get(first);
      if (waiter && !waiter.cancel) this.#turn(waiter, Number(ms));
      if (waiter || !first.startsWith(`${this.#process}/`)) return;
      this.#leaveLine({ id: first, line }); // it left, and Redis could not be told
      if (waiters.size > 0) await this.#beatFor(line);
    } catch {
      for (const waiter of waiters.values()) if (!this.#makeDo(waiter)) break;
    }
  }
}

/** Somebody who should be found in line; whoever is asking may have got in just now. */
function standing({ waiters }: Line): string {
  for (const { id, isAsking } of waiters.values()) if (!isAsking) return id;
  return '';
}
