/**
 * More than one core: processes that do the input and output of connections, while this one decides.
 *
 *     client ──▶ listener of the daemon ── passes the socket ──▶ the worker with the fewest connections
 *     client ◀═▶ socket in a worker ◀═ frames, one write a turn ═▶ RelayedSocket ── handler ── router ── limits
 *
 * All state stays in one process, so every answer is that of one daemon. A worker that ends, or does not answer, is
 * replaced; its connections are closed. Without a live worker the daemon serves new connections itself, as it always
 * does with TLS.
 */

import type { ChildProcess } from 'node:child_process';
import { Socket } from 'node:net';
import { type Millis, schedule, systemClock } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import { counter, gauge, type MetricFamily } from '../../core/metric-family.ts';
import { forkWorker } from '../files/built-files.ts';
import type { Accept } from '../server/listeners.ts';
import { RelayedSocket } from '../server/relayed-socket.ts';
import { Frame, FrameChannel } from './frame-channel.ts';
import { logWorkerWarning, type WarningMessage } from './worker-warnings.ts';

const START_MS: Millis = 10_000;
const PING_MS: Millis = 1_000;

/** Pings without an answer after which a worker gets no connections, and after which it is killed. */
const UNAVAILABLE_AFTER = 2;
const KILLED_AFTER = 5;

/** Between the end of a worker and its replacement. */
const RESTART_MS: Millis = 1_000;

/** How long workers may take to send the last responses. */
const EXIT_MS: Millis = 2_000;

/** Sockets on the way to one worker; beyond it, the daemon serves connections itself. */
const MAX_OPENING = 1024;

const MAX_ID = 2 ** 32 - 1;

interface Opening {
  readonly socket: Socket;
  readonly open: (id: number) => RelayedSocket;
}

export class WorkerPool {
  readonly #log: Log;
  readonly #workers = new Set<Worker>();
  readonly #cancelRestarts = new Set<() => void>();
  #cancelPing = (): void => {};
  #lastId = 0;
  #isClosing = false;
  #restarts = 0;

  /** Resolves once all workers are ready. */
  static async start(count: number, log: Log): Promise<WorkerPool> {
    const pool = new WorkerPool(log);
    const started = Array.from({ length: count }, () => pool.#startOne());
    try {
      await Promise.all(started);
    } catch (error) {
      await pool.close();
      throw error;
    }
    pool.#schedulePing();
    return pool;
  }

  private constructor(log: Log) {
    this.#log = log;
  }

  metrics(): readonly MetricFamily[] {
    const available = [...this.#workers].filter(({ isAvailable }) => isAvailable).length;
    return [
      gauge('sluice_workers', 'Workers that get new connections.', available),
      counter('sluice_worker_restarts_total', 'Workers started again.', this.#restarts),
    ];
  }

  /** Accepts connections on behalf of `accept`, which gets them from a worker. */
  relay(accept: Accept): Accept {
    return (socket, listen) => {
      const worker = socket.constructor === Socket ? this.#choose() : undefined; // TLS state cannot be passed
      if (worker === undefined) {
        accept(socket, listen);
        socket.resume(); // the listener has paused it
        return;
      }
      const { remoteAddress } = socket;
      worker.pass(this.#nextId(), socket, (id) => {
        const relayed = new RelayedSocket(worker.remoteEnd(id), remoteAddress);
        accept(relayed as unknown as Socket, listen); // it has every member that connections use
        return relayed;
      });
    };
  }

  /** The live worker with the fewest connections. */
  #choose(): Worker | undefined {
    let chosen: Worker | undefined;
    for (const worker of this.#workers)
      if (worker.isAvailable && (chosen === undefined || worker.load < chosen.load))
        chosen = worker;
    return chosen;
  }

  #nextId(): number {
    this.#lastId = this.#lastId === MAX_ID ? 1 : this.#lastId + 1;
    return this.#lastId;
  }

  async #startOne(): Promise<void> {
    const startedAt = systemClock.now();
    const worker = new Worker(this.#log, (reason) => {
      if (!this.#workers.delete(worker) || this.#isClosing) return;
      this.#log('warn', 'worker ended', { pid: worker.pid, reason });
      this.#restartLater();
    });
    this.#workers.add(worker);
    if (!(await worker.ready)) {
      worker.kill();
      const tookMs = Math.round(systemClock.now() - startedAt);
      throw new ConfigError('workers', 'processes that start', `none after ${tookMs} ms`);
    }
  }

  #restartLater(): void {
    const restart = (): void => {
      this.#cancelRestarts.delete(cancel);
      this.#restarts++;
      this.#startOne().catch(() => {}); // its end is logged, and leads here again
    };
    const cancel = schedule(systemClock, systemClock.now() + RESTART_MS, restart, false);
    this.#cancelRestarts.add(cancel);
  }

  #schedulePing(): void {
    const ping = (): void => {
      for (const worker of this.#workers) worker.ping();
      this.#schedulePing();
    };
    this.#cancelPing = schedule(systemClock, systemClock.now() + PING_MS, ping, false);
  }

  /** Ends all workers once they have sent everything; within a bound. */
  async close(): Promise<void> {
    this.#isClosing = true;
    this.#cancelPing();
    for (const cancel of this.#cancelRestarts) cancel();
    await Promise.all([...this.#workers].map((worker) => worker.end()));
  }
}

class Worker {
  readonly #child: ChildProcess;
  readonly #channel: FrameChannel;
  readonly #open = new Map<number, RelayedSocket>();
  /** On the way to the worker. */
  readonly #opening = new Map<number, Opening>();
  readonly #ended: Promise<void>;
  /** False if it has not started in time, or has ended before. */
  readonly ready: Promise<boolean>;
  #onReady: (isReady: boolean) => void = () => {};
  #isReady = false;
  #missedPings = 0;

  constructor(log: Log, onEnd: (reason: string) => void) {
    const stdio = ['ignore', 'ignore', 'inherit', 'ipc', 'pipe'] as const;
    // Without the environment, which may hold secrets.
    this.#child = forkWorker({ stdio: [...stdio], execArgv: [], env: {} });
    this.#channel = new FrameChannel(this.#child.stdio[4] as Socket, {
      onFrame: (type, id, payload) => this.#onFrame(type, id, payload),
      onDrain: () => {
        for (const relayed of this.#open.values()) relayed.unblock(false);
      },
      onEnd: () => {
        this.#closeConnections();
        this.kill(); // one that can no longer relay is of no use
      },
    });
    this.#child.on('message', (message: WarningMessage) =>
      logWorkerWarning(log, this.pid, message),
    );
    this.ready = new Promise((resolve) => {
      const cancel = schedule(
        systemClock,
        systemClock.now() + START_MS,
        () => resolve(false),
        false,
      );
      this.#onReady = (isReady) => {
        this.#isReady = isReady;
        cancel();
        resolve(isReady);
      };
    });
    this.#ended = new Promise((resolve) => {
      const end = (reason: string): void => {
        this.#onReady(false);
        this.#channel.destroy();
        this.#closeConnections();
        onEnd(reason);
        resolve();
      };
      this.#child.once('exit', (code, signal) => end(signal ?? `exit code ${code}`));
      this.#child.once('error', (error) => end(error.message));
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  get load(): number {
    return this.#open.size + this.#opening.size;
  }

  get isAvailable(): boolean {
    return (
      this.#isReady && this.#missedPings < UNAVAILABLE_AFTER && this.#opening.size < MAX_OPENING
    );
  }

  /** Passes an accepted socket; `open` is called once the worker has it. */
  pass(id: number, socket: Socket, open: Opening['open']): void {
    this.#opening.set(id, { socket, open });
    this.#child.send({ id }, socket, (error) => {
      if (!error) return;
      this.#opening.delete(id);
      socket.destroy();
    });
  }

  remoteEnd(id: number) {
    const channel = this.#channel;
    return {
      write: (bytes: Buffer | string, encoding: BufferEncoding): boolean => {
        channel.send(Frame.DATA, id, bytes, encoding);
        return !channel.isBlocked;
      },
      pause: () => channel.send(Frame.PAUSE, id),
      resume: () => channel.send(Frame.RESUME, id),
      end: () => channel.send(Frame.END, id),
      close: () => {
        if (this.#open.delete(id)) channel.send(Frame.CLOSE, id);
      },
    };
  }

  #onFrame(type: number, id: number, payload: Buffer): void {
    this.#missedPings = 0;
    if (type === Frame.PING) {
      if (!this.#isReady) this.#onReady(true);
      return;
    }
    if (type === Frame.OPEN) {
      const opening = this.#opening.get(id);
      this.#opening.delete(id);
      if (opening) this.#accept(id, opening);
      return;
    }
    const relayed = this.#open.get(id);
    if (type === Frame.DATA) relayed?.receive(Buffer.from(payload));
    else if (type === Frame.END) relayed?.receiveEnd();
    else if (type === Frame.PAUSE) relayed?.block();
    else if (type === Frame.RESUME) relayed?.unblock(true);
    else if (type === Frame.CLOSE) {
      this.#open.delete(id);
      this.#opening.delete(id);
      relayed?.destroy();
    }
  }

  /** A connection that is refused is destroyed at once. */
  #accept(id: number, { open }: Opening): void {
    const relayed = open(id);
    if (relayed.destroyed) this.#channel.send(Frame.CLOSE, id);
    else this.#open.set(id, relayed);
  }

  #closeConnections(): void {
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const relayed of open) relayed.destroy();
    for (const { socket } of this.#opening.values()) socket.destroy();
    this.#opening.clear();
  }

  /** One that does not answer gets no more connections, and is killed if it stays so. */
  ping(): void {
    if (!this.#isReady) return;
    if (this.#missedPings >= KILLED_AFTER) this.kill();
    this.#missedPings++;
    this.#channel.send(Frame.PING, 0);
  }

  kill(): void {
    this.#child.kill('SIGKILL');
  }

  async end(): Promise<void> {
    this.#channel.end();
    const cancel = schedule(systemClock, systemClock.now() + EXIT_MS, () => this.kill(), true);
    await this.#ended;
    cancel();
  }
}
