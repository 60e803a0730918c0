/** Pods that divide a limit, each a process of its own, and what all of them took in each second of this machine's clock. */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const POD = fileURLToPath(new URL('./pod.mjs', import.meta.url));

/** Clocks are wrong by so much more from one pod to the next, in turn to either side. */
const SKEW_MS = 3_600_000;

const LOOK_EVERY_MS = 10;

/** What pods tell of a second is here so much later, on a machine that is busy with other things. */
const TOLD_WITHIN_MS = 300;

const add = (sums, second, taken) => sums.set(second, (sums.get(second) ?? 0) + taken);

export class Pods {
  /** What was surely taken in each second. */
  sums = new Map();
  /** What was taken while one second became another: from which to which, and how much. */
  #unsure = [];
  #setting;
  #running = [];
  #born = 0;

  constructor({ store, port, limit, options }) {
    this.#setting = { store, port, limit, options };
  }

  get count() {
    return this.#running.length;
  }

  start() {
    const n = ++this.#born;
    const skewMs = SKEW_MS * n * (n % 2 ? 1 : -1);
    const child = fork(POD, [JSON.stringify({ ...this.#setting, id: `pod${n}`, skewMs })]);
    const pod = { child, part: { size: 0, rank: -1, heardAt: -Infinity } };
    child.on('message', (news) => {
      if (news.type === 'part') pod.part = news;
      if (news.type === 'taken') this.#count(news);
    });
    this.#running.push(pod);
  }

  #count(news) {
    if (news.from === news.to) add(this.sums, news.from, news.taken);
    else this.#unsure.push(news);
  }

  get unsure() {
    return this.#unsure.reduce((sum, { taken }) => sum + taken, 0);
  }

  /** The oldest leaves in good order. */
  async leave() {
    const { child } = this.#running.shift();
    const gone = once(child, 'exit');
    child.send('leave');
    await gone;
  }

  /** The oldest dies as a crash would have it. */
  async kill() {
    const { child } = this.#running.shift();
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
  }

  /**
   * When the second began, after `since`, from which on all of the limit was taken in every second, up to one that began when
   * everybody had its part; Infinity: it did not happen in time. A part counts once the store was heard again: those who have
   * yet to learn that it has forgotten them go on for a moment as if nothing had happened.
   */
  async wholeFrom(since, limit, withinMs) {
    const first = Math.ceil(since / 1000);
    let agreedAt;
    while (Date.now() - since < withinMs) {
      await sleep(LOOK_EVERY_MS);
      const areAll = this.#running.every(({ part }) => this.#isWhole(part, since));
      agreedAt = areAll ? (agreedAt ?? Date.now()) : undefined;
      const last = Math.floor((Date.now() - TOLD_WITHIN_MS) / 1000) - 1;
      if (!areAll || last * 1000 < agreedAt || this.sums.get(last) !== limit) continue;
      let from = last;
      while (from > first && this.sums.get(from - 1) === limit) from--;
      return from * 1000;
    }
    return Infinity;
  }

  #isWhole({ size, rank, heardAt }, since) {
    return size === this.count && rank >= 0 && heardAt > since;
  }

  /** The most that was taken in any second from that one on. What may be of several is taken to be of the emptiest. */
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
