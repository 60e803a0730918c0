import type { Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { isRemote, type RemoteLimiter } from '../../limiter/async-limiter.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import { createPolicy } from '../../policies/limit.ts';
import type { Timeline } from '../timeline.ts';
import { NodeClock } from './node-clock.ts';
import type { ScenarioLimit } from './scenario.ts';
import type { SharedBackend } from './shared-backends.ts';

/** The most keys of one limit in one node. */
const MAX_KEYS = 1_000_000;

/** A call that a node has accepted and that has not ended. */
export interface OpenCall {
  /** Fails the call because the node has crashed. */
  fail(): void;
}

export interface NodeSetup {
  readonly timeline: Timeline;
  readonly limits: readonly ScenarioLimit[];
  readonly shared: readonly SharedBackend[];
  readonly seed: number;
  /** Called when promises may have resolved. */
  readonly onTimer: () => void;
}

export class ScenarioNode {
  readonly index: number;
  readonly #setup: NodeSetup;
  readonly open = new Set<OpenCall>();
  clock: NodeClock;
  limiter: Limiter | RemoteLimiter;
  /** Set if the limiter decides at once. */
  local: Limiter | undefined;
  /** The one key of all calls, where the node's only limit has one. */
  readonly key: string | undefined;
  /** True if a call needs only a check: there is no permit to settle. */
  readonly isCheckOnly: boolean;
  isUp = true;
  isFrozen = false;
  /** When it crashed or froze; Infinity while it runs. */
  failedAt: Millis = Infinity;
  #starts = 0;
  #held: (() => void)[] = [];

  constructor(index: number, setup: NodeSetup) {
    this.index = index;
    this.#setup = setup;
    const { limits } = setup;
    this.key = limits.length === 1 ? limits[0].key : undefined;
    this.isCheckOnly = limits.every(({ limit }) => {
      const { needsOutcome, canReserve } = createPolicy(limit, seededRandom(0)).traits;
      return !needsOutcome && !canReserve;
    });
    this.clock = new NodeClock(setup.timeline, setup.onTimer);
    this.limiter = this.#createLimiter();
    this.local = isRemote(this.limiter) ? undefined : this.limiter;
  }

  #createLimiter(): Limiter | RemoteLimiter {
    const { limits, shared, seed } = this.#setup;
    const random = seededRandom((seed * 131 + this.index) * 8191 + ++this.#starts);
    const parts = limits.map(({ name, limit, queue }, n) => {
      const backend = shared[n].join(this.index, this.clock);
      const options = { name, limit, queue, clock: this.clock, random, maxKeys: MAX_KEYS };
      return createLimiter({ ...options, ...(backend && { backend }) });
    });
    if (parts.length === 1) return parts[0];
    return all(
      parts.map((limiter, n) => {
        const { key } = limits[n];
        return { limiter, ...(key !== undefined && { key }) };
      }),
    );
  }

  crash(now: Millis): void {
    if (!this.isUp) return;
    this.isUp = false;
    this.isFrozen = false;
    this.failedAt = now;
    this.clock.kill();
    this.#held = [];
    for (const call of this.open) call.fail();
    this.open.clear();
  }

  /** Stops in an orderly way: leaves the backends first. */
  stop(now: Millis): void {
    for (const backend of this.#setup.shared) backend.leave(this.index);
    this.crash(now);
  }

  /** Restarts without the state it had in memory. */
  start(): void {
    if (this.isUp) return;
    this.clock = new NodeClock(this.#setup.timeline, this.#setup.onTimer);
    this.limiter = this.#createLimiter();
    this.local = isRemote(this.limiter) ? undefined : this.limiter;
    this.isUp = true;
    this.failedAt = Infinity;
  }

  freeze(now: Millis): void {
    if (!this.isUp) return;
    this.isFrozen = true;
    this.failedAt = now;
    this.clock.freeze();
  }

  thaw(): void {
    if (!this.isFrozen) return;
    this.isFrozen = false;
    this.failedAt = Infinity;
    this.clock.thaw();
    const held = this.#held;
    this.#held = [];
    for (const run of held) run();
  }

  /** Runs now or, while the process is frozen, when it resumes. */
  whenRunning(run: () => void): void {
    if (this.isFrozen) this.#held.push(run);
    else run();
  }
}
