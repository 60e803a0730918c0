/**
 * What a run of a fleet comes to, in the words of docs/accuracy.md.
 */

import type { Millis } from '../../clock.ts';
import type { PeerCounts } from '../../share/peers/engine.ts';
import { jain } from '../adaptive/statistics.ts';

/** A call that was let through. */
export interface Admitted {
  readonly at: Millis;
  readonly client: number;
}

export interface Run {
  readonly nodes: number;
  readonly startMs: Millis;
  readonly admitted: readonly Admitted[];
  readonly calls: number;
  /** What one central bucket lets through. */
  readonly central: number;
  readonly tooMany: number;
  readonly tooFew: number;
  readonly servedBy: readonly number[];
  readonly counts: readonly PeerCounts[];
  readonly seconds: number;
}

export interface FleetFigures {
  readonly calls: number;
  readonly admitted: number;
  /** Worst window of so many milliseconds, as a part of burst and rate: 1 is what one bucket allows. */
  readonly worst: Readonly<Record<number, number>>;
  /** The most that was let through in any span beyond burst and rate over that span, in calls. */
  readonly excess: number;
  /** Of what one bucket would have let through, how much was. */
  readonly utilisation: number;
  /** Calls a second in the long run, as a part of the rate. */
  readonly mean: number;
  /** Calls decided otherwise than by one bucket, as parts of all calls. */
  readonly tooMany: number;
  readonly tooFew: number;
  readonly fairNodes: number;
  readonly fairClients: number;
  /** A node sends so much, to everybody together. */
  readonly bytesPerSecond: number;
  readonly datagramsPerSecond: number;
}

interface Rule {
  readonly rate: number;
  readonly burst: number;
  readonly spanMs: Millis;
  readonly clients: number;
}

const WINDOWS_MS: readonly Millis[] = [100, 1000, 10_000, 60_000];

export function figuresOf({ rate, burst, spanMs, clients }: Rule, run: Run): FleetFigures {
  const byClient = Array.from({ length: clients }, (): Millis[] => []);
  for (const { at, client } of run.admitted) byClient[client].push(at);
  const worstIn = (windowMs: Millis): number =>
    Math.max(...byClient.map((times) => mostWithin(times, windowMs))) /
    (burst + (rate * windowMs) / 1000);
  const half = run.admitted.filter(({ at }) => at >= run.startMs + spanMs / 2).length;
  const sum = (read: (counts: PeerCounts) => number): number =>
    run.counts.reduce((total, counts) => total + read(counts), 0);
  return {
    calls: run.calls,
    admitted: run.admitted.length,
    worst: Object.fromEntries(
      WINDOWS_MS.filter((own) => own <= spanMs).map((own) => [own, worstIn(own)]),
    ),
    excess: Math.max(...byClient.map((times) => excessOf(times, rate, burst))),
    utilisation: run.admitted.length / run.central,
    mean: half / (((rate * spanMs) / 2000) * clients),
    tooMany: run.tooMany / run.calls,
    tooFew: run.tooFew / run.calls,
    fairNodes: jain(run.servedBy),
    fairClients: jain(byClient.map(({ length }) => length)),
    bytesPerSecond: sum(({ sentBytes }) => sentBytes) / run.nodes / run.seconds,
    datagramsPerSecond: sum(({ sent }) => sent) / run.nodes / run.seconds,
  };
}

/** The most that fall into any span of that length. */
function mostWithin(times: readonly Millis[], windowMs: Millis): number {
  let most = 0;
  let from = 0;
  for (let to = 0; to < times.length; to++) {
    while (times[to] - times[from] >= windowMs) from++;
    most = Math.max(most, to - from + 1);
  }
  return most;
}

/**
 * How far a bucket that saw all of it would have gone below empty: calls beyond burst + rate × span, in the
 * worst of all spans there are.
 */
function excessOf(times: readonly Millis[], rate: number, burst: number): number {
  let spent = 0;
  let last = Number.NEGATIVE_INFINITY;
  let most = 0;
  for (const at of times) {
    spent = Math.max(0, spent - ((at - last) * rate) / 1000) + 1;
    last = at;
    most = Math.max(most, spent - burst);
  }
  return Math.max(0, most);
}
