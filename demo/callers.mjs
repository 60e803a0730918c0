/**
 * Clients that call at an even pace, each time at the next daemon in turn, and what became of their calls.
 *
 *     caller ──▶ its turn: north │ south │ west ──▶ allowed, denied, or no answer: then the next one
 *        └─────▶ one bucket in this process that sees every call: what a limit in one place would have allowed
 */

const TICK_MS = 5;
const SECOND_MS = 1000;

export class Caller {
  asked = 0;
  allowed = 0;
  denied = 0;
  /** Calls that no daemon answered. */
  unanswered = 0;
  /** What one bucket would have allowed. */
  oneBucket = 0;
  #daemons;
  #bucket;
  /** Calls of the last second: `{ at, daemon, isAllowed }`. */
  #recent = [];
  #timer;

  constructor(name, daemons, bucket) {
    this.name = name;
    this.#daemons = daemons;
    this.#bucket = bucket;
  }

  /** Calls that wait for their answer. */
  get open() {
    return this.asked - this.allowed - this.denied - this.unanswered;
  }

  /** Calls so many times a second, until it is told to pause. What a busy machine made late is made up for. */
  begin(perSecond) {
    const begunAt = performance.now();
    let made = 0;
    this.#timer = setInterval(() => {
      const due = ((performance.now() - begunAt) / SECOND_MS) * perSecond;
      for (; made < due; made++) void this.#call(this.#turn());
    }, TICK_MS);
  }

  pause() {
    clearInterval(this.#timer);
  }

  /** So many calls in the same instant at one daemon; how many of them were allowed. */
  async burst(count, daemon) {
    const calls = Array.from({ length: count }, () => this.#call([daemon, ...this.#daemons]));
    return (await Promise.all(calls)).filter(Boolean).length;
  }

  /** Allowed and denied in the last second: by one daemon, or by all. */
  lastSecond(daemon) {
    const since = performance.now() - SECOND_MS;
    this.#recent = this.#recent.filter(({ at }) => at > since);
    const calls = this.#recent.filter((call) => !daemon || call.daemon === daemon);
    const allowed = calls.filter(({ isAllowed }) => isAllowed).length;
    return { allowed, denied: calls.length - allowed };
  }

  /** All daemons, the next one first. */
  #turn() {
    const first = this.asked % this.#daemons.length;
    return [...this.#daemons.slice(first), ...this.#daemons.slice(0, first)];
  }

  /** Asks one after the other until somebody answers. */
  async #call(inTurn) {
    this.asked++;
    if (this.#bucket.check(this.name).verdict === 'allow') this.oneBucket++;
    for (const daemon of inTurn) {
      const isAllowed = await daemon.allows(this.name);
      if (isAllowed === undefined) continue;
      if (isAllowed) this.allowed++;
      else this.denied++;
      this.#recent.push({ at: performance.now(), daemon, isAllowed });
      return isAllowed;
    }
    this.unanswered++;
    return false;
  }
}
