import { describe, expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { limiter } from '../limiter/limiter.ts';
import { busy } from '../policies/busy.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import {
  type BusyScenario,
  countBetween,
  mostInASecond,
  recoverySeconds,
  simulateBusy,
} from './busy.ts';

const HEALTHY_S = 5;

interface Overload extends Partial<BusyScenario> {
  readonly callsPerSecond: number;
  readonly rtt: number;
  readonly spell: number;
  /** Start in seconds. */
  readonly from?: number;
}

/** A service that replies busy to every call for `spell` seconds. */
function overload({ callsPerSecond, rtt, spell, from = HEALTHY_S, ...more }: Overload) {
  const to = from + spell;
  const run = simulateBusy({
    policy: busy({}),
    seconds: to + 8,
    rps: () => callsPerSecond,
    rttMs: () => rtt,
    isBusy: (at) => at >= from * 1000 && at < to * 1000,
    ...more,
  });
  return {
    run,
    most: mostInASecond(run.sent, from + 2, to),
    recovery: recoverySeconds(run, to),
    total: countBetween(run.sent, from + 2, to),
  };
}

const SPELLS = [0.1, 1, 10, 100];

describe('busy, live: a service that is busy throughout', () => {
  for (const rtt of [1, 50, 1000]) {
    for (const callsPerSecond of [10, 100, 1000, 20_000]) {
      const spells = callsPerSecond > 1000 ? [0.1, 4] : SPELLS; // many calls are slow to simulate
      test(`busy: ${callsPerSecond} calls/s, RTT ${rtt} ms: two probes a second, recovery within seconds`, () => {
        const runs = spells.map((spell) => overload({ callsPerSecond, rtt, spell }));
        for (const { most } of runs) expect(most).toBeLessThanOrEqual(2);
        const recoveries = runs.map(({ recovery }) => recovery);
        expect(Math.max(...recoveries)).toBeLessThanOrEqual(6);
        if (callsPerSecond < 100) return; // ten calls a second are too few to measure a second
        expect(recoveries).toEqual(recoveries.toSorted((a, b) => a - b));
        expect(recoveries.at(-1)).toBeGreaterThan((recoveries[0] as number) + 1);
      });
    }
  }

  test('busy: sends probes during the whole overload', () => {
    const { total } = overload({ callsPerSecond: 500, rtt: 50, spell: 100 });
    expect(total).toBeGreaterThan(98);
    expect(total).toBeLessThan(2 * 98);
  });

  test('busy: an overload of a tenth of a second costs less than two seconds of traffic', () => {
    const { run } = overload({ callsPerSecond: 5000, rtt: 10, spell: 0.1 });
    const refused =
      countBetween(run.offered, HEALTHY_S, HEALTHY_S + 8) -
      countBetween(run.sent, HEALTHY_S, HEALTHY_S + 8);
    expect(refused).toBeLessThan(2 * 5000);
  });

  test('busy: the same with and without the send times of calls', () => {
    for (const rtt of [1, 400]) {
      const [known, unknown] = [true, false].map((hasSendTimes) =>
        overload({ callsPerSecond: 1000, rtt, spell: 10, hasSendTimes }),
      ) as [ReturnType<typeof overload>, ReturnType<typeof overload>];
      expect(unknown.most).toBeLessThanOrEqual(2);
      expect(Math.abs(known.recovery - unknown.recovery)).toBeLessThanOrEqual(0.2);
    }
  });

  const random = seededRandom(11);
  const slowWhileBusy = (top: number) => (at: number) =>
    50 + (top - 50) * Math.min(1, Math.max(0, (at - HEALTHY_S * 1000) / 3000));
  const roundTrips: Record<string, (at: number) => number> = {
    'random from 1 to 800 ms': () => 1 + 799 * random(),
    '100 ms with jitter of 90 ms': () => 10 + 180 * random(),
    'rising to 2 s while busy': slowWhileBusy(2000),
    'rising to 8 s while busy': slowWhileBusy(8000),
  };
  test.for(Object.entries(roundTrips))(
    'busy: RTT %s: few calls into the busy service, recovery within seconds',
    ([, rttMs]) => {
      const { run, recovery } = overload({
        callsPerSecond: 1000,
        rtt: 0,
        spell: 30,
        seconds: 50,
        rttMs,
      });
      expect(mostInASecond(run.sent, HEALTHY_S + 3, HEALTHY_S + 30)).toBeLessThanOrEqual(2);
      expect(recovery).toBeLessThanOrEqual(12); // at 8 s RTT the first good reply alone takes that long
    },
  );

  test('busy: fast busy replies count at once, although slow good replies still come', () => {
    const from = HEALTHY_S * 1000;
    const { run } = overload({
      callsPerSecond: 5000,
      rtt: 0,
      spell: 10,
      rttMs: (at) => (at >= from && at < from + 10_000 ? 1 : 800),
    });
    expect(countBetween(run.sent, HEALTHY_S, HEALTHY_S + 0.5)).toBeLessThan(50);
  });

  test('busy: several overloads in a row: the traffic does not flap with them', () => {
    const isBusy = (at: number) => at >= 5000 && at < 35_000 && Math.floor(at / 1000) % 3 === 0;
    const { run } = overload({ callsPerSecond: 1000, rtt: 50, spell: 30, isBusy });
    expect(countBetween(run.sent, 10, 35)).toBeLessThan(0.2 * 25 * 1000);
    expect(recoverySeconds(run, 35)).toBeLessThanOrEqual(6);
  });

  test('busy: two clients of one service send two probes a second each, and both recover', () => {
    const { most, recovery } = overload({ callsPerSecond: 2000, rtt: 50, spell: 20, clients: 2 });
    expect(most).toBeLessThanOrEqual(4);
    expect(recovery).toBeLessThanOrEqual(6);
  });

  test('busy: a call in ten seconds is always sent', () => {
    const { run } = overload({ callsPerSecond: 0.1, rtt: 50, spell: 100 });
    expect(countBetween(run.sent, 0, 110)).toBe(11);
  });

  // A call of more than one unit is not a probe: it is tried after 1 s without calls in flight.
  test('busy: calls of cost 50: a twentieth is sent while busy, and they recover within seconds', () => {
    const { run, recovery } = overload({
      callsPerSecond: 200,
      rtt: 50,
      spell: 20,
      seconds: 40,
      cost: 50,
    });
    const [offered, sent] = [run.offered, run.sent].map((counts) =>
      countBetween(counts, HEALTHY_S + 2, HEALTHY_S + 20),
    ) as [number, number];
    expect(sent).toBeGreaterThan(0);
    expect(sent).toBeLessThan(offered / 20);
    expect(recovery).toBeLessThanOrEqual(10);
  });

  test('busy: a higher recover rate recovers earlier, a lower one later', () => {
    const [slow, usual, fast] = [1, 3, 9].map(
      (recoverRate) =>
        overload({
          callsPerSecond: 1000,
          rtt: 50,
          spell: 10,
          seconds: 30,
          policy: busy({ recoverRate }),
        }).recovery,
    ) as [number, number, number];
    expect(fast).toBeLessThan(usual - 0.5);
    expect(slow).toBeGreaterThan(usual + 1);
  });

  test('busy: recoverValue recovers by so many calls a second', () => {
    const policy = busy({ recoverValue: 200 });
    const { most, recovery } = overload({
      callsPerSecond: 1000,
      rtt: 50,
      spell: 10,
      seconds: 30,
      policy,
    });
    expect(most).toBeLessThanOrEqual(2);
    expect(recovery).toBeGreaterThan(4);
    expect(recovery).toBeLessThan(7);
  });
});

describe('busy, live: a service that takes a part of the traffic', () => {
  const sentShare = (isBusy: BusyScenario['isBusy'], callsPerSecond: number, rtt: number) => {
    const rps = () => callsPerSecond;
    const policy = busy({});
    const run = simulateBusy({ policy, seconds: 15, rps, rttMs: () => rtt, isBusy });
    const [offered, sent, refused] = [run.offered, run.sent, run.busy].map((counts) =>
      countBetween(counts, 5, 15),
    ) as [number, number, number];
    return { sent: sent / offered, taken: (sent - refused) / 10, refused: refused / sent };
  };

  /** A service with a token bucket. */
  const taking = (perSecond: number) => {
    const burst = perSecond / 10;
    let [tokens, filledAt] = [burst, 0];
    return (at: number): boolean => {
      tokens = Math.min(burst, tokens + ((at - filledAt) * perSecond) / 1000);
      filledAt = at;
      if (tokens < 1) return true;
      tokens--;
      return false;
    };
  };

  test.each([1, 50, 400])(
    'busy: one random busy reply in 100, RTT %d ms: sends all traffic',
    (rtt) => {
      for (const callsPerSecond of [10, 5000]) {
        const random = seededRandom(3);
        const { sent } = sentShare(() => random() < 0.01, callsPerSecond, rtt);
        expect(sent).toBeGreaterThanOrEqual(0.99);
      }
    },
  );

  for (const capacity of [3000, 500]) {
    test(`busy: a service that takes ${capacity} of 5,000 calls a second is fully used`, () => {
      for (const rtt of [1, 50, 400]) {
        const { taken, refused } = sentShare(taking(capacity), 5000, rtt);
        expect(taken).toBeGreaterThanOrEqual(0.97 * capacity);
        expect(refused).toBeLessThanOrEqual(0.52); // never more than twice what it takes
      }
    });
  }
});

describe('busy, live: the limiter', () => {
  const RTT = 200;

  /** Calls sent per second of a busy service, by the way the limiter is used. */
  function sentBy(use: 'permits' | 'check and settle'): number[] {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    const sent: number[] = [];
    const due: { at: number; settle: () => void }[] = [];
    for (let ms = 0; ms < 12_000; ms++) {
      while (due[0] && due[0].at <= ms) due.shift()?.settle();
      const outcome = ms >= 2000 ? 'busy' : 'ok';
      let settle: (() => void) | undefined;
      if (use === 'permits') {
        const entry = api.tryAcquire('k');
        if (entry.verdict === 'allow') settle = () => entry.settle({ outcome });
      } else if (api.check('k', 1, { willSettle: true }).verdict === 'allow')
        settle = () => api.settle('k', { outcome });
      if (settle) {
        sent[Math.floor(ms / 1000)] = (sent[Math.floor(ms / 1000)] ?? 0) + 1;
        due.push({ at: ms + RTT, settle });
      }
      clock.advance(1);
    }
    return sent;
  }

  /** The fraction of 200 calls per second that a service with fast refusals and slow work serves. */
  function goodShare(isBusy: (inService: number) => boolean, workMs: number): number {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    const due: { at: number; settle: () => void }[] = [];
    let inService = 0;
    let good = 0;
    for (let ms = 0; ms < 20_000; ms++) {
      for (const { settle } of due.filter(({ at }) => at === ms)) settle();
      clock.advance(1);
      const permit = ms % 5 === 0 ? api.tryAcquire('k') : undefined;
      if (permit?.verdict !== 'allow') continue;
      const outcome = isBusy(inService) ? 'busy' : 'ok';
      if (outcome === 'ok') inService++;
      const settle = (): void => {
        if (outcome === 'ok') inService--;
        permit.settle({ outcome });
      };
      if (outcome === 'ok' && ms >= 5000) good++;
      due.push({ at: ms + (outcome === 'ok' ? workMs : 1), settle });
      if (due.length > 2000) due.splice(0, 1000);
    }
    return good / 15 / 200;
  }

  test.each([50, 200, 1000])(
    'busy: one random refusal in 100, after 1 ms, beside replies after %d ms: sends all traffic',
    (workMs) => {
      const random = seededRandom(5);
      expect(goodShare(() => random() < 0.01, workMs)).toBeGreaterThanOrEqual(0.98);
    },
  );

  test('busy: a service that refuses above 20 calls in flight after 1 ms is used to 80 %', () => {
    const capacity = 20 / 0.2 / 200; // 20 workers, 200 ms
    expect(goodShare((inService) => inService >= 20, 200)).toBeGreaterThanOrEqual(0.8 * capacity);
  });

  test('busy: permits and check with settle agree', () => {
    const [permits, checks] = [sentBy('permits'), sentBy('check and settle')];
    expect(permits).toEqual(checks);
    expect(permits.slice(0, 2)).toEqual([1000, 1000]);
    for (const count of permits.slice(4)) expect(count).toBeLessThanOrEqual(2);
  });

  test('busy: waiters get permits when due, and all of them after the overload', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { busy: {} }, clock });
    for (let n = 0; n < 100; n++) api.check('k', 1, { willSettle: true });
    for (let n = 0; n < 10; n++) api.settle('k', { outcome: 'busy' });
    const grantedAt: number[] = [];
    const waiting = Array.from({ length: 50 }, async () => {
      const entry = await api.acquire('k', 1, { wait: '1min' });
      grantedAt.push(clock.now());
      entry.verdict === 'allow' && entry.settle({ outcome: clock.now() < 3000 ? 'busy' : 'ok' });
    });
    // A timer of the virtual clock fires on the first step after its time.
    for (let ms = 0; ms < 8000; ms += 10) {
      clock.advance(10);
      await Promise.resolve();
    }
    await Promise.all(waiting);
    expect(grantedAt.filter((at) => at < 3000)).toEqual([620, 1220, 1820, 2420]);
    expect(Math.max(...grantedAt)).toBeLessThan(6000);
  });
});
