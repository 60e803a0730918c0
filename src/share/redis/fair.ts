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
 * it is alive, and whoever stands first and belongs to a process that has gone silent is skipped.
 */

import { alarm, type Clock, type Millis } from '../../clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../decision.ts';
import type { Random } from '../../random.ts';
import { CLOSED, type FairEntry, type FairPatience } from '../remote.ts';
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
  /** What it was told meanwhile: the answer that is under way may be older than that. */
  toldMs: Millis | undefined;
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
  readonly standIn: (key: string, cost: number) => Decision;
  /** How to say that whoever got in by this name, at that time, does not need it. */
  readonly giveBack: (id: string, cost: number, at: Millis) => string;
}

export class FairRoom {
  readonly #options: FairOptions;
  /** Of this process, in this limiter: nobody else's. */
  readonly #process: string;
  readonly #lines = new Map<string, Line>();
  #joined = 0;
  #waiting = 0;
  /** What was sent for those who wait, and is not answered. */
  readonly #underWay = new Set<Promise<unknown>>();
  #isListening = false;
  #beat: (() => void) | undefined;

  constructor(options: FairOptions) {
    this.#options = options;
    const letters = () => options.random().toString(36).slice(2, 10);
    this.#process = `${letters()}${letters()}`;
  }

  get size(): number {
    return this.#waiting;
  }

  /** Waits for a permit; rejects only if the signal aborts. `key` is as Redis knows it. */
  async enter(key: string, cost: number, patience: FairPatience): Promise<FairEntry> {
    const { signal, maxWaitMs } = patience;
    signal?.throwIfAborted();
    if (this.#waiting >= this.#options.waitersMax) {
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
        toldMs: undefined,
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
      this.#waiting++;
      line.waiters.set(waiter.id, waiter);
      this.#track(this.#ask(waiter));
      this.#beatLater();
    });
  }

  /** Refuses all who wait, at once; nobody of this process stands in Redis's line when it is over. */
  async close(): Promise<void> {
    for (const waiter of [...this.#lines.values()].flatMap(({ waiters }) => [
      ...waiters.values(),
    ])) {
      this.#leaveLine(waiter);
      waiter.finish(CLOSED);
    }
    this.#beat?.();
    this.#beat = undefined;
    while (this.#underWay.size > 0) await Promise.all(this.#underWay); // what is answered now is given back
    await this.#options.subscriber.stop();
  }

  #newLine(key: string): Line {
    const line: Line = { key, waiters: new Map() };
    this.#lines.set(key, line);
    return line;
  }

  #forget({ id, line }: Waiter): void {
    this.#waiting--;
    line.waiters.delete(id);
    if (line.waiters.size === 0) this.#lines.delete(line.key);
  }

  /**
   * Hears whose turn it is, from whoever had its turn before. Nobody waits for the connection to stand: what was
   * missed until then is asked for, and if it cannot be had the next beat tries again.
   */
  #listen(): void {
    if (this.#isListening) return;
    this.#isListening = true;
    const hear = (message: string): void => {
      const [id, ms] = message.split(' ', 2);
      const key = message.slice(id.length + ms.length + 2);
      this.#turn(this.#lines.get(key)?.waiters.get(id), Number(ms));
    };
    this.#options.subscriber.listen(`sluice:turn:${this.#process}`, hear).then(
      () => this.#askWhoIsFirst(),
      () => {
        this.#isListening = false;
      },
    );
  }

  /** Closing waits for it. */
  #track(work: Promise<unknown>): void {
    this.#underWay.add(work);
    work.finally(() => this.#underWay.delete(work));
  }

  /** Its turn has come, and it may ask in so long. */
  #turn(waiter: Waiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting) return;
    if (waiter.isAsking) {
      waiter.toldMs = ms;
      return;
    }
    const { clock } = this.#options;
    waiter.cancel?.();
    const ask = (): void => {
      waiter.cancel = undefined;
      this.#track(this.#ask(waiter));
    };
    waiter.cancel = alarm(clock, clock.now() + ms, ask, true);
  }

  async #ask(waiter: Waiter): Promise<void> {
    if (!waiter.isWaiting || waiter.isAsking) return;
    waiter.isAsking = true;
    waiter.toldMs = undefined;
    const { key } = waiter.line;
    try {
      const { told, at } = await this.#options.pipe.send(key, `f${waiter.id} ${waiter.cost}`);
      waiter.isAsking = false;
      if (told === '-') this.#stay(waiter);
      else this.#answered(waiter, decisionOf(told), at);
    } catch {
      waiter.isAsking = false;
      if (waiter.isWaiting) waiter.finish(this.#standIn(waiter));
    }
  }

  #answered(waiter: Waiter, decision: ReturnType<typeof decisionOf>, at: Millis): void {
    if (decision.verdict !== 'deny') {
      if (waiter.isWaiting)
        waiter.finish({ verdict: 'allow', dueAt: at, isMakeshift: false, holder: waiter.id });
      else this.#giveBack(waiter, at); // it gave up while the answer was under way
    } else if (decision.retryAfterMs === NEVER) {
      if (waiter.isWaiting) waiter.finish({ ...decision, reason: 'never' });
    } else if (decision.retryAfterMs === WHEN_SETTLED) {
      this.#stay(waiter);
    } else {
      this.#turn(waiter, decision.retryAfterMs); // it is first, and came too early
    }
  }

  /** It will be told when its turn comes, unless it has been. */
  #stay(waiter: Waiter): void {
    if (waiter.toldMs !== undefined) this.#turn(waiter, waiter.toldMs);
  }

  #standIn({ line, cost }: Waiter): FairEntry {
    const { clock, standIn } = this.#options;
    const decision = standIn(line.key, cost);
    return decision.verdict === 'deny'
      ? { ...decision, reason: 'not-now' }
      : { verdict: 'allow', dueAt: clock.now(), isMakeshift: true };
  }

  #giveBack({ id, line, cost }: Waiter, at: Millis): void {
    const text = this.#options.giveBack(id, cost, at);
    this.#track(this.#options.pipe.send(line.key, text).catch(() => {}));
  }

  #leaveLine({ id, line }: Waiter): void {
    this.#track(this.#options.pipe.send(line.key, `x${id}`).catch(() => {}));
  }

  /** While somebody waits: says that this process is alive, and asks who is first. */
  #beatLater(): void {
    if (this.#beat) return;
    const { clock } = this.#options;
    const beat = async (): Promise<void> => {
      this.#beat = undefined;
      this.#listen();
      await this.#askWhoIsFirst();
      if (this.#waiting > 0) this.#beatLater();
    };
    this.#beat = alarm(clock, clock.now() + BEAT_MS, beat, true);
  }

  #askWhoIsFirst(): Promise<unknown> {
    const all = Promise.all([...this.#lines.values()].map((line) => this.#beatFor(line)));
    this.#track(all);
    return all;
  }

  async #beatFor({ key, waiters }: Line): Promise<void> {
    try {
      const { told } = await this.#options.pipe.send(key, `b${this.#process}`);
      if (told === '-') {
        for (const waiter of waiters.values()) this.#track(this.#ask(waiter)); // the line is gone: join again
        return;
      }
      const [first, ms] = String(told).split(' ');
      const waiter = waiters.get(first);
      if (waiter && !waiter.cancel && Number(ms) >= 0) this.#turn(waiter, Number(ms));
    } catch {
      // told to listeners already; those who wait are answered when they ask
    }
  }
}
