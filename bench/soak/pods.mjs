/** Pool members that divide a limit, a process each, and their units taken per second of this machine's clock. */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const POD = fileURLToPath(new URL('./pod.mjs', import.meta.url));

/** Clock skew: grows from one pod to the next, alternating in direction. */
const SKEW_MS = 3_600_000;

const POLL_MS = 10;

/** Reports of a second arrive within this time, even on a busy machine. */
const REPORTED_WITHIN_MS = 300;

const add = (sums, second, taken) => sums.set(second, (sums.get(second) ?? 0) + taken);

export class Pods {
  /** Units certainly taken in each second. */
  sums = new Map();
  /** Units taken across the border of a second: `from`, `to`, `taken`. */
  #unsure = [];
  #setup;
  #running = [];
  #started = 0;

  constructor({ store, port, limit, options }) {
    this.#setup = { store, port, limit, options };
  }

  get count() {
    return this.#running.length;
  }

  start() {
    const n = ++this.#started;
    const skewMs = SKEW_MS * n * (n % 2 ? 1 : -1);
    const child = fork(POD, [JSON.stringify({ ...this.#setup, id: `pod${n}`, skewMs })]);
    const pod = { child, part: { size: 0, rank: -1, syncedAt: -Infinity } };
    child.on('message', (message) => {
      if (message.type === 'part') pod.part = message;
      if (message.type === 'taken') this.#count(message);
    });
    this.#running.push(pod);
  }

  #count(message) {
    if (message.from === message.to) add(this.sums, message.from, message.taken);
    else this.#unsure.push(message);
  }

  get unsure() {
    return this.#unsure.reduce((sum, { taken }) => sum + taken, 0);
  }

  /** The oldest pod leaves the pool and exits. */
  async leave() {
    const { child } = this.#running.shift();
    const exited = once(child, 'exit');
    child.send('leave');
    await exited;
  }

  /** The oldest pod crashes. */
  async kill() {
    const { child } = this.#running.shift();
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  }

  /**
   * Start of the first second, after `since`, from which on the whole limit was taken in every second, up to one that began
   * when all pods agreed on the size; Infinity after a timeout. Only positions that were synced after `since` count: pods
   * that have not noticed a loss of the store's data continue with the old ones for a moment.
   */
  async wholeFrom(since, limit, withinMs) {
    const first = Math.ceil(since / 1000);
    let agreedAt;
    while (Date.now() - since < withinMs) {
      await sleep(POLL_MS);
      const haveAgreed = this.#running.every(({ part }) => this.#isCurrent(part, since));
      agreedAt = haveAgreed ? (agreedAt ?? Date.now()) : undefined;
      const last = Math.floor((Date.now() - REPORTED_WITHIN_MS) / 1000) - 1;
      if (!haveAgreed || last * 1000 < agreedAt || this.sums.get(last) !== limit) continue;
      let from = last;
      while (from > first && this.sums.get(from - 1) === limit) from--;
      return from * 1000;
    }
    return Infinity;
  }

  #isCurrent({ size, rank, syncedAt }, since) {
    return size === this.count && rank >= 0 && syncedAt > since;
  }

  /** The most units taken in any second since then. Uncertain ones count for the emptiest of their seconds. */
  mostSince(at) {
    const sums = new Map(this.sums);
    for (const { from, to, taken } of this.#unsure) {
      const seconds = Array.from({ length: to - from + 1 }, (_, n) => from + n);
      const emptiest = seconds.toSorted((a, b) => (sums.get(a) ?? 0) - (sums.get(b) ?? 0))[0];
      add(sums, emptiest, taken);
    }
    const first = Math.floor(at / 1000);
    return Math.max(...[...sums].map(([second, sum]) => (second < first ? 0 : sum)));
  }

  async stop() {
    while (this.count > 0) await this.leave();
  }
}
