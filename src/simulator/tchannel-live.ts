/**
 * TChannel's traffic through the production policy: replies come one by one, a round trip later.
 *
 *     time   0         1 ──────────── 9   10 ─────────────────── 31
 *            healthy   │ busy replies │    │ recovering: until     │
 *            (not      │ to the first │    │ nothing is throttled  │
 *            shown)    │ N calls/s    │    │ or the time is up     │
 */

import type { Millis } from '../core/clock.ts';
import { busy } from '../policies/busy.ts';
import { countBetween, INTERVAL_MS, simulateBusy } from './busy.ts';
import {
  flowAt,
  HEALTHY_AT,
  MAX_TIME,
  type Recovery,
  runOf,
  type SimulatedSecond,
  type TchannelRun,
  type Traffic,
} from './tchannel.ts';

/** Every call is simulated, so more calls per second take too long. */
export const MAX_LIVE_CALLS = 100_000;

export function simulateTchannelLive(
  traffic: Traffic,
  recovery: Recovery,
  rttMs: Millis,
): TchannelRun {
  const isBusy = busyReplies(traffic);
  const {
    offered,
    sent,
    busy: refused,
    limit,
  } = simulateBusy({
    policy: busy(recovery, ''),
    seconds: MAX_TIME + 1,
    rps: (time) => flowAt(traffic.rps, Math.floor(time)),
    rttMs: () => rttMs,
    isBusy,
  });
  const secondAt = (time: number): SimulatedSecond => {
    const [rps, calls, busyCalls] = [offered, sent, refused].map((counts) =>
      countBetween(counts, time, time + 1),
    ) as [number, number, number];
    const limitThen = limit[(time * 1000) / INTERVAL_MS] as number;
    return { time, rps, sent: calls, throttled: rps - calls, busy: busyCalls, limit: limitThen };
  };
  const seconds = Array.from({ length: MAX_TIME }, (_, n) => secondAt(n + 1));
  const [whileBusy, after] = [seconds.slice(0, HEALTHY_AT - 1), seconds.slice(HEALTHY_AT - 1)];
  const recovered = after.findIndex(({ throttled }) => throttled === 0);
  const recovering = recovered < 0 ? after : after.slice(0, recovered + 1);
  return runOf(traffic, recovery, whileBusy, recovering);
}

/** Refuses the first calls of each second, as many as the traffic specifies. */
function busyReplies(traffic: Traffic): (at: Millis) => boolean {
  let second = -1;
  let left = 0;
  return (at) => {
    const time = Math.floor(at / 1000);
    if (time !== second) {
      second = time;
      left = time >= 1 && time < HEALTHY_AT ? flowAt(traffic.busy, time) : 0;
    }
    return left-- > 0;
  };
}
