/**
 * Simulated clients that call the daemons in rotation at a constant rate, and count the results.
 *
 *     caller ──▶ next of north │ south │ west ──▶ allowed, denied, or unavailable: then the next one
 *        └─────▶ one token bucket in this process that sees every call, for comparison
 */

const TICK_MS = 5;
const SECOND_MS = 1000;

export class Caller {
  calls = 0;
  allowed = 0;
  denied = 0;
  /** Calls without a reply from any daemon. */
  unanswered = 0;
  /** Calls that one bucket would have allowed. */
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

  get pending() {
    return this.calls - this.allowed - this.denied - this.unanswered;
  }

  /** Calls at a constant rate until `pause`; late calls are made up for. */
  start(perSecond) {
    const startedAt = performance.now();
    let made = 0;
    this.#timer = setInterval(() => {
      const due = ((performance.now() - startedAt) / SECOND_MS) * perSecond;
      for (; made < due; made++) void this.#call(this.#rotation());
    }, TICK_MS);
  }

  pause() {
    clearInterval(this.#timer);
  }

  /** Sends calls to one daemon at once; resolves with the number of allowed calls. */
  async burst(count, daemon) {
    const calls = Array.from({ length: count }, () => this.#call([daemon, ...this.#daemons]));
    return (await Promise.all(calls)).filter(Boolean).length;
  }

  /** Allowed and denied calls in the last second, of one daemon or of all. */
  lastSecond(daemon) {
    const since = performance.now() - SECOND_MS;
    this.#recent = this.#recent.filter(({ at }) => at > since);
    const calls = this.#recent.filter((call) => !daemon || call.daemon === daemon);
    const allowed = calls.filter(({ isAllowed }) => isAllowed).length;
    return { allowed, denied: calls.length - allowed };
  }

  /** All daemons, starting with the next one. */
  #rotation() {
    const first = this.calls % this.#daemons.length;
    return [...this.#daemons.slice(first), ...this.#daemons.slice(0, first)];
  }

  /** Tries the daemons in order until one replies. */
  async #call(daemons) {
    this.calls++;
    if (this.#bucket.check(this.name).verdict === 'allow') this.oneBucket++;
    for (const daemon of daemons) {
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
