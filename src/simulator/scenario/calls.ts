import type { Millis } from '../../core/clock.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import type { Reply, Server } from '../laboratory/servers.ts';
import type { Timeline } from '../timeline.ts';
import type { PickNode } from './balancer.ts';
import {
  ALLOWED,
  DENIED,
  type DecisionLog,
  FAILED,
  type ReplyKind,
  type ReplyLog,
} from './call-log.ts';
import type { Caller } from './callers.ts';
import type { OpenCall, ScenarioNode } from './node.ts';

export interface CallsOptions {
  readonly timeline: Timeline;
  readonly startMs: Millis;
  readonly pick: PickNode;
  /** Undefined: an allowed call ends at once. */
  readonly server: Server | undefined;
  readonly decisions: DecisionLog;
  readonly replies: ReplyLog;
  /** Called when promises may have resolved. */
  readonly onPromises: () => void;
}

/** A call that takes more than one check: it waits, is served, or needs a permit. */
interface Call extends OpenCall {
  readonly caller: Caller;
  /** Number of earlier attempts. */
  readonly attempts: number;
  /** Index of the caller's key. */
  readonly keyIndex: number;
  readonly node: ScenarioNode;
  readonly madeAt: Millis;
  /** When the server received it; NaN before. */
  servedAt: Millis;
  permit: Permit | undefined;
  isOpen: boolean;
}

/** The retry time of a call that no limit has refused: only its back-off counts. */
const AT_ONCE: Millis = 0;

export class Calls {
  readonly #options: CallsOptions;
  readonly #timeline: Timeline;
  readonly #startMs: Millis;
  readonly #decisions: DecisionLog;
  readonly #atServer = new Set<Call>();

  constructor(options: CallsOptions) {
    this.#options = options;
    this.#timeline = options.timeline;
    this.#startMs = options.startMs;
    this.#decisions = options.decisions;
  }

  /** Schedules the first call of a caller. */
  start(caller: Caller): void {
    const { traffic, fromMs } = caller.client;
    if (traffic.shape !== 'hog') {
      const arrive = (): void => {
        this.#attempt(caller, 0);
        this.#scheduleNext(caller, arrive);
      };
      this.#scheduleNext(caller, arrive);
      return;
    }
    const begin = (): void => this.#attempt(caller, 0);
    for (let n = 0; n < traffic.parallel; n++)
      this.#timeline.scheduleAt(this.#startMs + fromMs, begin);
  }

  /** Logs the calls that are still at the server. */
  end(durationMs: Millis): void {
    for (const { caller, servedAt } of this.#atServer)
      this.#options.replies.add(servedAt, durationMs, caller.index, 'open');
  }

  get #now(): Millis {
    return this.#timeline.now - this.#startMs;
  }

  #scheduleNext(caller: Caller, arrive: () => void): void {
    const { client, next } = caller;
    let at = caller.lastAt;
    do at = next?.(at) ?? Infinity;
    while (at < client.fromMs); // steady traffic counts from 0
    caller.lastAt = at;
    if (at < client.toMs) this.#timeline.scheduleAt(this.#startMs + at, arrive);
  }

  #attempt(caller: Caller, attempts: number): void {
    const { client, keys, keyIds, index } = caller;
    const node = this.#options.pick(index, this.#timeline.now);
    const n = keys.length === 1 ? 0 : Math.floor(caller.random() * keys.length);
    const now = this.#now;
    if (!node?.isUp) {
      this.#decisions.add(now, 0, index, keyIds[n], FAILED);
      this.#retryOrEnd(caller, attempts, now, AT_ONCE);
      return;
    }
    const { local } = node;
    const needsPermit = !node.isCheckOnly || client.attempt !== undefined;
    if (!local || needsPermit || client.waitMs > 0 || node.isFrozen) {
      const call = this.#open(caller, attempts, n, node);
      node.whenRunning(() => this.#acquire(call));
      return;
    }
    const decision = local.check(node.key ?? keys[n], client.cost);
    if (decision.verdict === 'deny') {
      this.#decisions.add(now, 0, index, keyIds[n], DENIED);
      this.#retryOrEnd(caller, attempts, now, decision.retryAfterMs);
      return;
    }
    this.#decisions.add(now, 0, index, keyIds[n], ALLOWED);
    if (this.#options.server) this.#serve(this.#open(caller, attempts, n, node));
    else this.#callAgain(caller, now, false);
  }

  #open(caller: Caller, attempts: number, keyIndex: number, node: ScenarioNode): Call {
    const { timeoutMs } = caller.client;
    const call: Call = {
      ...{ caller, attempts, keyIndex, node, madeAt: this.#now },
      servedAt: Number.NaN,
      permit: undefined,
      isOpen: true,
      fail: () => this.#abandon(call, 'failed'),
    };
    node.open.add(call);
    if (timeoutMs < Infinity)
      this.#timeline.scheduleAfter(timeoutMs, () => this.#abandon(call, 'timeout'));
    return call;
  }

  #acquire(call: Call): void {
    if (!call.isOpen) return;
    const { caller, node, keyIndex } = call;
    const { waitMs, cost } = caller.client;
    const key = node.key ?? caller.keys[keyIndex];
    if (node.local && waitMs === 0) {
      this.#decide(call, node.local.tryAcquire(key, cost));
      return;
    }
    const { onPromises } = this.#options;
    const wait = waitMs === Infinity ? true : waitMs;
    const entry = Promise.resolve(
      waitMs === 0 ? node.limiter.tryAcquire(key, cost) : node.limiter.acquire(key, cost, { wait }),
    );
    onPromises();
    void entry.then((decided) => {
      onPromises();
      this.#decide(call, decided);
    });
  }

  #decide(call: Call, entry: Permit | Refusal): void {
    const { caller, keyIndex, madeAt, attempts } = call;
    if (!call.isOpen) {
      if (entry.verdict === 'allow') entry.settle({ outcome: 'ignored' });
      return;
    }
    const now = this.#now;
    const decision = entry.verdict === 'allow' ? ALLOWED : DENIED;
    this.#decisions.add(now, now - madeAt, caller.index, caller.keyIds[keyIndex], decision);
    if (entry.verdict === 'deny') {
      this.#close(call);
      this.#retryOrEnd(caller, attempts, madeAt, entry.retryAfterMs);
      return;
    }
    call.permit = entry;
    if (this.#options.server) {
      this.#serve(call);
      return;
    }
    const { attempt } = caller.client;
    entry.settle(attempt && { attempt });
    this.#close(call);
    this.#callAgain(caller, madeAt, false);
  }

  #serve(call: Call): void {
    call.servedAt = this.#now;
    this.#atServer.add(call);
    this.#options.server?.((reply) => call.node.whenRunning(() => this.#reply(call, reply)));
  }

  #reply(call: Call, reply: Reply): void {
    if (!call.isOpen) return;
    const { caller, attempts, madeAt } = call;
    this.#endService(call, reply);
    this.#close(call);
    if (reply === 'ok') this.#callAgain(caller, madeAt, false);
    else this.#retryOrEnd(caller, attempts, madeAt, AT_ONCE);
  }

  /** Abandons a call: the caller has waited too long, or the node has crashed. */
  #abandon(call: Call, why: 'timeout' | 'failed'): void {
    if (!call.isOpen) return;
    const { caller, keyIndex, madeAt, attempts } = call;
    const now = this.#now;
    if (Number.isNaN(call.servedAt))
      this.#decisions.add(now, now - madeAt, caller.index, caller.keyIds[keyIndex], FAILED);
    else this.#endService(call, why);
    this.#close(call);
    this.#retryOrEnd(caller, attempts, madeAt, AT_ONCE);
  }

  #endService(call: Call, reply: ReplyKind & ('ok' | 'busy' | 'timeout' | 'failed')): void {
    const { caller, servedAt, permit, node } = call;
    const { attempt } = caller.client;
    const now = this.#now;
    this.#options.replies.add(servedAt, now, caller.index, reply);
    if (node.isUp)
      permit?.settle({ outcome: reply, rttMs: now - servedAt, ...(attempt && { attempt }) });
    this.#options.onPromises(); // a waiting call may get the permit
  }

  #close(call: Call): void {
    call.isOpen = false;
    call.node.open.delete(call);
    this.#atServer.delete(call);
  }

  #retryOrEnd(caller: Caller, attempts: number, madeAt: Millis, retryAfterMs: Millis): void {
    const { retries, backoffMs } = caller.client;
    if (attempts >= retries || retryAfterMs === Infinity) {
      this.#callAgain(caller, madeAt, true);
      return;
    }
    const backoff = backoffMs * 2 ** attempts * (0.5 + caller.random() / 2);
    this.#timeline.scheduleAfter(Math.max(retryAfterMs, backoff), () =>
      this.#attempt(caller, attempts + 1),
    );
  }

  /** The next call of a hog: at once, unless the last one was refused or took no time. */
  #callAgain(caller: Caller, madeAt: Millis, isRefused: boolean): void {
    const { traffic, toMs } = caller.client;
    if (traffic.shape !== 'hog') return;
    const now = this.#now;
    const at = isRefused || now === madeAt ? now + traffic.everyMs : now;
    if (at < toMs) this.#timeline.scheduleAt(this.#startMs + at, () => this.#attempt(caller, 0));
  }
}
