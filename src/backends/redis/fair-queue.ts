/**
 * Waiting fairly: one line for all processes, first come first served, kept by Redis.
 *
 *     join ──▶ in line ──▶ told that it is first, and when it may ask ──▶ asks ──▶ in
 *                │                                                         │
 *                └── gives up: leaves                whoever is next is told ──▶ …
 *
 * Without it each process has a line of its own, and whose asks first is luck. Here a permit costs one
 * call: whoever gets in wakes the next, by a message that says in how many milliseconds its turn comes;
 * where calls in flight are counted, whoever settles wakes the first.
 *
 * Messages may be lost, so each process also asks once a second who is first; the same call says that
 * it is alive, and whoever stands first and belongs to a process that has gone silent is skipped. It also
 * finds out that Redis has forgotten the line, or skipped somebody who is still there (who then joins
 * again), and places in line that nobody here waits for any more.
 *
 * While Redis is out of reach, what stands in for it lets in whom it may; the others stay.
 */

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { Underway } from '../../core/pending.ts';
import type { Random } from '../../core/random.ts';
import { CLOSED, type FairEntry, type FairPatience } from '../remote-backend.ts';
import type { Answered, Pipe } from './batcher.ts';
import type { Subscriber } from './client.ts';
import { STALE_MS } from './lua-script.ts';
import { decisionOf } from './reply.ts';

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
  readonly key: string;
  readonly waiters: Map<string, Waiter>;
}

export interface FairOptions {
  readonly pipe: Pipe;
  readonly clock: Clock;
  readonly random: Random;
  readonly subscriber: Subscriber;
  readonly waitersMax: number;
  readonly keepAlive: boolean;
  /** What a key is called in Redis. */
  readonly keyOf: (key: string) => string;
  /** Decides while Redis is out of reach. */
  readonly standIn: { ask(key: string, cost: number): Decision };
  /** How to say that whoever got in by this name, at that time, does not need it. */
  readonly giveBack: (id: string, cost: number, at: Millis) => string;
  /** Takes note that a place is held by this name until its call settles, where those in flight are counted. */
  readonly hold?: ((id: string, held: Held) => void) | undefined;
}

/** A place that is held while its call is in flight. */
export interface Held {
  readonly key: string;
  readonly cost: number;
  /** True if it was let in here, while Redis was out of reach. */
  readonly isMakeshift: boolean;
}

/** A name that nobody else goes by. */
export function nameByChance(random: Random): string {
  const letters = () => random().toString(36).slice(2, 10);
  return `${letters()}${letters()}`;
}

export class FairRoom {
  readonly #options: FairOptions;
  /** Of this process, in this limiter: nobody else's. */
  readonly #process: string;
  readonly #lines = new Map<string, Line>();
  /** All of them, by id. */
  readonly #waiters = new Map<string, Waiter>();
  /** What was sent for those who wait, and is not answered. */
  readonly #underway = new Underway();
  #joined = 0;
  #beat: (() => void) | undefined;
  #isListening = false;

  constructor(options: FairOptions) {
    this.#options = options;
    this.#process = nameByChance(options.random);
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  async enter(key: string, cost: number, patience: FairPatience): Promise<FairEntry> {
    const { signal, waitMsMax } = patience;
    signal?.throwIfAborted();
    if (this.size >= this.#options.waitersMax) {
      return { verdict: 'deny', retryAfterMs: 0, reason: 'queue-full' };
    }
    this.#listen();
    return new Promise((resolve, reject) => {
      const { clock, keepAlive } = this.#options;
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
      if (waitMsMax < Infinity) stop = alarm(clock, clock.now() + waitMsMax, giveUp, keepAlive);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.set(waiter.id, waiter);
      line.waiters.set(waiter.id, waiter);
      this.#ask(waiter);
      this.#beatLater();
    });
  }

  /** Refuses all who wait, at once; nobody of this process stands in Redis's line when it is over. */
  async close(): Promise<void> {
    for (const waiter of [...this.#waiters.values()]) {
      this.#leaveLine(waiter);
      waiter.finish(CLOSED);
    }
    this.#beat?.();
    this.#beat = undefined;
    await this.#underway.ended(); // whoever is let in now gives it back
    await this.#options.subscriber.stop();
  }

  /** Asks at once who is first, for this key or for all: Redis is back or can be heard, or a place is free here. */
  hurry(key?: string): void {
    for (const line of this.#lines.values()) {
      if (key === undefined || line.key === key) this.#beatFor(line);
    }
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

  #send({ key }: Line, text: string): Promise<Answered> {
    const { pipe, keyOf } = this.#options;
    return this.#underway.add(pipe.send(keyOf(key), text));
  }

  /** Its turn has come, and it may ask in so long. */
  #turn(waiter: Waiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting) return;
    if (waiter.isAsking) {
      waiter.toldMs = ms;
      return;
    }
    const { clock, keepAlive } = this.#options;
    waiter.cancel?.();
    const ask = (): void => {
      waiter.cancel = undefined;
      this.#ask(waiter);
    };
    waiter.cancel = alarm(clock, clock.now() + ms, ask, keepAlive);
  }

  async #ask(waiter: Waiter): Promise<void> {
    if (!waiter.isWaiting || waiter.isAsking) return;
    waiter.isAsking = true;
    waiter.toldMs = undefined;
    try {
      const { told, at } = await this.#send(waiter.line, `f${waiter.id} ${waiter.cost}`);
      waiter.isAsking = false;
      const decision = told === '-' ? undefined : decisionOf(told);
      if (waiter.isWaiting) this.#answered(waiter, decision, at);
      else this.#undo(waiter, decision, at);
    } catch {
      waiter.isAsking = false;
      this.#makeDo(waiter);
    }
  }

  /** Undefined: it stands in line, and not first. */
  #answered(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    if (decision === undefined || isUntilSettled(decision)) {
      // It will be told when its turn comes, unless it has been.
      if (waiter.toldMs !== undefined) this.#turn(waiter, waiter.toldMs);
    } else if (decision.verdict !== 'deny') {
      this.#letIn(waiter, at, false);
    } else if (decision.retryAfterMs === NEVER) {
      waiter.finish({ ...decision, reason: 'never' });
    } else {
      this.#turn(waiter, decision.retryAfterMs); // it is first, and came too early
    }
  }

  /** It gave up while the answer was under way; if it was asked twice, it may have joined after it had left. */
  #undo(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    const { id, line, cost } = waiter;
    if (decision === undefined || decision.verdict === 'deny') this.#leaveLine(waiter);
    else this.#send(line, this.#options.giveBack(id, cost, at)).catch(() => {});
  }

  /** Redis is out of reach: true if those behind may try, too. Else it stays, and asks again before long. */
  #makeDo(waiter: Waiter): boolean {
    if (!waiter.isWaiting || waiter.isAsking) return true;
    const { standIn, clock } = this.#options;
    const decision = standIn.ask(waiter.line.key, waiter.cost);
    if (decision.verdict !== 'deny') this.#letIn(waiter, clock.now(), true);
    else if (decision.retryAfterMs === NEVER) waiter.finish({ ...decision, reason: 'never' });
    else if (!isUntilSettled(decision))
      this.#turn(waiter, Math.min(decision.retryAfterMs, BEAT_MS));
    return !waiter.isWaiting;
  }

  #letIn(waiter: Waiter, dueAt: Millis, isMakeshift: boolean): void {
    const { id, cost, line } = waiter;
    const { hold } = this.#options;
    hold?.(id, { key: line.key, cost, isMakeshift });
    waiter.finish({ verdict: 'allow', dueAt, isMakeshift, ...(hold && { holder: id }) });
  }

  #leaveLine({ id, line }: Pick<Waiter, 'id' | 'line'>): void {
    this.#send(line, `x${id}`).catch(() => {}); // a beat finds what is left there
  }

  /** While somebody waits: says that this process is alive, and asks who is first. */
  #beatLater(): void {
    if (this.#beat) return;
    const { clock, keepAlive } = this.#options;
    const beat = async (): Promise<void> => {
      this.#beat = undefined;
      this.#listen();
      await Promise.all([...this.#lines.values()].map((line) => this.#beatFor(line)));
      if (this.size > 0) this.#beatLater();
    };
    this.#beat = alarm(clock, clock.now() + BEAT_MS, beat, keepAlive);
  }

  async #beatFor(line: Line): Promise<void> {
    const { waiters } = line;
    try {
      const { told } = await this.#send(line, `b${this.#process} ${standing(line)}`);
      if (told === '-') {
        for (const waiter of waiters.values()) this.#ask(waiter); // join again: who still stands there keeps its place
        return;
      }
      const [first, text] = String(told).split(' ');
      const ms = Number(text); // less than 0 if a call must settle first: then whoever settles it tells
      const waiter = waiters.get(first);
      if (waiter && !waiter.cancel && ms >= 0) this.#turn(waiter, ms);
      if (waiter || !first.startsWith(`${this.#process}/`)) return;
      this.#leaveLine({ id: first, line }); // it left, and Redis could not be told
      if (waiters.size > 0) await this.#beatFor(line);
    } catch {
      for (const waiter of waiters.values()) if (!this.#makeDo(waiter)) break;
    }
  }
}

/** True if nobody can say how long it takes: whoever settles a call tells. */
const isUntilSettled = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.retryAfterMs === WHEN_SETTLED;

/** Somebody who should be found in line; whoever is asking may have got in just now. */
function standing({ waiters }: Line): string {
  for (const { id, isAsking } of waiters.values()) if (!isAsking) return id;
  return '';
}
