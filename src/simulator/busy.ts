/**
 * Clients with a busy limit and a service that replies busy, on virtual time: the production policy, not a model of it.
 *
 *     client ──▶ check ──▶ service ── round trip ──▶ settle: ok or busy
 *       │ refused calls are lost
 *
 * Each client offers its calls evenly over time. All counts are by interval of 100 ms.
 */

import type { Millis } from '../core/clock.ts';
import { Heap } from '../core/heap.ts';
import type { Policy, State } from '../policies/policy.ts';

/** The members of the policy that a run uses. */
export type BusyPolicy = Pick<Policy, 'width' | 'init' | 'check' | 'settle' | 'keyState'>;

export interface BusyScenario {
  readonly policy: BusyPolicy;
  readonly seconds: number;
  /** Calls a second that each client offers, by time in seconds. */
  rps(time: number): number;
  /** The service's reply to a call sent at this time. Called once per call, in the order of time. */
  isBusy(at: Millis): boolean;
  rttMs(at: Millis): Millis;
  /** Default 1. */
  readonly clients?: number;
  /** False: replies are settled without the time at which their call was sent. Default true. */
  readonly hasSendTimes?: boolean;
  /** The cost of each call. Default 1. */
  readonly cost?: number;
}

/** Counts by interval. */
export interface BusyRun {
  readonly offered: Float64Array;
  readonly sent: Float64Array;
  /** Busy replies, counted in the interval in which the call was sent. */
  readonly busy: Float64Array;
  /** The limit of the first client at the first call of the interval. */
  readonly limit: Float64Array;
}

export const INTERVAL_MS: Millis = 100;

interface Reply {
  readonly at: Millis;
  readonly client: number;
  readonly dueAt: Millis;
  readonly isBusy: boolean;
}

export function simulateBusy(scenario: BusyScenario): BusyRun {
  const { policy, clients = 1, cost = 1, hasSendTimes = true } = scenario;
  const endAt = scenario.seconds * 1000;
  const intervals = Math.ceil(endAt / INTERVAL_MS);
  const counts = () => new Float64Array(intervals);
  const [offered, sent, busy, limit] = [counts(), counts(), counts(), counts()];
  const state: State = new Float64Array(clients * policy.width);
  for (let n = 0; n < clients; n++) policy.init(state, n * policy.width, 0);
  const replies = new Heap<Reply>((a, b) => a.at < b.at);

  const settleUntil = (now: Millis): void => {
    for (let next = replies.peek(); next && next.at <= now; next = replies.peek()) {
      replies.pop();
      const { at, client, isBusy } = next;
      const dueAt = hasSendTimes ? next.dueAt : at;
      const outcome = isBusy ? 'busy' : 'ok';
      policy.settle(state, client * policy.width, { outcome, cost, dueAt }, at);
    }
  };

  const call = (client: number, now: Millis): void => {
    const n = Math.floor(now / INTERVAL_MS);
    if (offered[n] === 0) limit[n] = policy.keyState(state, 0, now).limit ?? 0;
    offered[n] += 1;
    if (policy.check(state, client * policy.width, cost, now).verdict !== 'allow') return;
    sent[n] += 1;
    const isBusy = scenario.isBusy(now);
    if (isBusy) busy[n] += 1;
    replies.push({ at: now + scenario.rttMs(now), client, dueAt: now, isBusy });
  };

  // Clients take turns, so that their calls together are evenly spread, too.
  let client = 0;
  for (let now = 0; now < endAt; ) {
    const rps = scenario.rps(now / 1000) * clients;
    if (!(rps > 0)) {
      now = (Math.floor(now / 1000) + 1) * 1000;
      continue;
    }
    settleUntil(now);
    call(client, now);
    client = (client + 1) % clients;
    now = roundToSecond(now + 1000 / rps);
  }
  return { offered, sent, busy, limit };
}

/** Without rounding errors, so that a second has its whole number of calls. */
function roundToSecond(at: Millis): Millis {
  const turn = Math.round(at / 1000) * 1000;
  return Math.abs(at - turn) < 1e-6 ? turn : at;
}

/** The sum of the intervals from one time to another, in seconds. */
export function countBetween(counts: Float64Array, from: number, to: number): number {
  const [first, last] = [from, to].map((seconds) => Math.round((seconds * 1000) / INTERVAL_MS));
  return counts.subarray(first, last).reduce((sum, count) => sum + count, 0);
}

/** The most calls in any second that lies between two times. */
export function mostInASecond(counts: Float64Array, from: number, to: number): number {
  let most = 0;
  for (let at = from; at + 1 <= to + 1e-9; at += INTERVAL_MS / 1000)
    most = Math.max(most, countBetween(counts, at, at + 1));
  return most;
}

/**
 * Seconds from `since` until `share` of the offered calls are sent in every interval from then on, or until the run ends.
 * An interval with few calls cannot tell: at least ten offered calls are compared.
 */
export function recoverySeconds({ offered, sent }: BusyRun, since: number, share = 0.9): number {
  const start = Math.round((since * 1000) / INTERVAL_MS);
  let recovered = offered.length;
  let [wanted, got] = [0, 0];
  for (let n = offered.length - 1; n >= start; n--) {
    wanted += offered[n] as number;
    got += sent[n] as number;
    if (wanted < 10) continue;
    if (got < share * wanted) break;
    recovered = n;
    [wanted, got] = [0, 0];
  }
  return ((recovered - start) * INTERVAL_MS) / 1000;
}
