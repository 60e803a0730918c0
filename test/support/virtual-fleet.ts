/**
 * Processes on virtual time with a real Redis: the scripts run in Redis, at the instant that the test's clock shows.
 *
 *     process ──▶ half a round trip ──▶ EVALSHA with this instant ──▶ half a round trip ──▶ reply
 *                                          └─▶ PUBLISH ──▶ half a round trip ──▶ message
 *
 * The clock moves to the next timer when every call in flight has its reply and every message has arrived here. So what is
 * measured does not depend on how the machine schedules the test, Redis or anything else.
 */

import { createClient } from 'redis';
import type { RedisClient } from '../../src/backends/redis/client.ts';
import type { Clock, Millis } from '../../src/core/clock.ts';
import { Heap } from '../../src/core/heap.ts';

interface Timer {
  readonly at: Millis;
  readonly sequence: number;
  readonly callback: () => void;
  isActive: boolean;
}

const connect = (port: number) => createClient({ socket: { port, host: '127.0.0.1' } });
type RealClient = ReturnType<typeof connect>;

const START: Millis = 1_700_000_000_000;

export class VirtualFleet {
  #now = START;
  #lastSequence = 0;
  readonly #timers = new Heap<Timer>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );
  /** Calls to the real server that have no reply yet. */
  readonly #pending = new Set<Promise<unknown>>();
  readonly #client: RealClient;
  readonly #subscriber: RealClient;
  /** How far Redis's clock is ahead of that of the processes; a test may step it. */
  redisAheadMs: Millis = 0;

  private constructor(client: RealClient, subscriber: RealClient) {
    this.#client = client;
    this.#subscriber = subscriber;
  }

  static async start(port: number): Promise<VirtualFleet> {
    const [client, subscriber] = [connect(port), connect(port)];
    await Promise.all([client.connect(), subscriber.connect()]);
    return new VirtualFleet(client, subscriber);
  }

  stop(): void {
    this.#client.destroy();
    this.#subscriber.destroy();
  }

  get now(): Millis {
    return this.#now;
  }

  /** A process that is half of `rttMs` away from Redis. */
  process(rttMs: Millis): VirtualProcess {
    return new VirtualProcess(this, rttMs / 2);
  }

  wakeAt(at: Millis, callback: () => void): () => void {
    const timer = { at, sequence: ++this.#lastSequence, callback, isActive: true };
    this.#timers.push(timer);
    return () => {
      timer.isActive = false;
    };
  }

  /** Moves the clock by `ms`, timer by timer. */
  async run(ms: Millis): Promise<void> {
    const end = this.#now + ms;
    await this.#settled();
    for (let next = this.#timers.peek(); next && next.at <= end; next = this.#timers.peek()) {
      this.#timers.pop();
      if (!next.isActive) continue;
      this.#now = Math.max(this.#now, next.at);
      next.callback();
      await this.#settled();
    }
    this.#now = end;
  }

  /** No callback is queued, no call has no reply, and no message is on its way. */
  async #settled(): Promise<void> {
    do {
      await Promise.all(this.#pending);
      await new Promise(setImmediate);
    } while (this.#pending.size > 0);
  }

  track<T>(call: Promise<T>): Promise<T> {
    const done: Promise<void> = call.then(
      () => {},
      () => {},
    );
    this.#pending.add(done);
    void done.then(() => this.#pending.delete(done));
    return call;
  }

  /** Runs a command in Redis, a script at the virtual instant; returns when its messages are here, too. */
  async execute(words: readonly string[]): Promise<unknown> {
    try {
      return await this.#client.sendCommand(atInstant(words, this.#now + this.redisAheadMs));
    } finally {
      await this.#subscriber.ping(); // its reply comes after the messages
    }
  }

  subscribe(channel: string, onMessage: (message: string) => void): Promise<void> {
    return this.#subscriber.subscribe(channel, onMessage);
  }

  unsubscribe(channel: string): Promise<void> {
    return this.#subscriber.unsubscribe(channel);
  }
}

/** A script gets this time in place of its deadline on Redis's clock. */
function atInstant(words: readonly string[], now: Millis): string[] {
  const [command, , keys] = words;
  if (!command.startsWith('EVAL')) return [...words];
  const n = 3 + Number(keys);
  return words.map((word, at) => (at === n && word.startsWith('by ') ? String(now) : word));
}

/** A process of the fleet: its clock, and its connections to Redis. */
export class VirtualProcess {
  readonly #fleet: VirtualFleet;
  readonly #oneWayMs: Millis;
  readonly #channels: string[] = [];
  #isKilled = false;
  #stalledUntil: Millis = -Infinity;

  constructor(fleet: VirtualFleet, oneWayMs: Millis) {
    this.#fleet = fleet;
    this.#oneWayMs = oneWayMs;
  }

  readonly clock: Clock = {
    now: () => this.#fleet.now,
    wakeAt: (at, callback) => this.#wakeAt(at, callback),
  };

  /** A timer of a process that is stalled fires when the stall is over; of a killed one never. */
  #wakeAt(at: Millis, callback: () => void): () => void {
    let cancel = this.#fleet.wakeAt(at, () => {
      if (this.#isKilled) return;
      if (this.#fleet.now >= this.#stalledUntil) callback();
      else cancel = this.#fleet.wakeAt(this.#stalledUntil, callback);
    });
    return () => cancel();
  }

  /** Nothing of it runs for so long: what arrives meanwhile waits. */
  stall(ms: Millis): void {
    this.#stalledUntil = this.#fleet.now + ms;
  }

  /** As by SIGKILL: its connections are closed. */
  async kill(): Promise<void> {
    this.#isKilled = true;
    await Promise.all(this.#channels.map((channel) => this.#fleet.unsubscribe(channel)));
  }

  /** What arrives here. */
  #receive(): Promise<void> {
    return new Promise((arrive) => {
      this.#wakeAt(this.#fleet.now + this.#oneWayMs, arrive);
    });
  }

  async #send(words: readonly string[]): Promise<unknown> {
    await new Promise<void>((arrive) => {
      this.#fleet.wakeAt(this.#fleet.now + this.#oneWayMs, arrive);
    });
    const [reply] = await Promise.allSettled([this.#fleet.track(this.#fleet.execute(words))]);
    await this.#receive();
    if (reply.status === 'rejected') throw reply.reason;
    return reply.value;
  }

  async #subscribe(channel: string, onMessage: (message: string) => void): Promise<void> {
    this.#channels.push(channel);
    const deliver = (message: string): void => {
      void this.#receive().then(() => onMessage(message));
    };
    await this.#fleet.track(this.#fleet.subscribe(channel, deliver));
    await this.#receive();
  }

  /** As a client of node-redis. */
  get client(): RedisClient {
    const client = {
      isOpen: true,
      evalSha() {},
      on() {},
      connect: async () => {},
      destroy: () => {},
      sendCommand: (words: readonly string[]) => this.#send(words),
      subscribe: (channel: string, onMessage: (message: string) => void) =>
        this.#subscribe(channel, onMessage),
      duplicate: () => client,
    };
    return client as unknown as RedisClient;
  }
}
