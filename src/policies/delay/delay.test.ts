import { describe, expect, test } from 'vitest';
import { type Reply, replyAfter, Sender, silent, workers } from '../../../test/support/sender.ts';
import { exponentialVariate, type Random, seededRandom } from '../../core/random.ts';
import { CATALOGUE } from '../../simulator/laboratory/catalogue.ts';
import { findRule } from '../../simulator/laboratory/rules.ts';
import { evaluate } from '../../simulator/laboratory/score.ts';

/** A server with 20 workers of 50 ms each can serve so many calls a second. */
const CAPACITY = 400;
const SETTLED_MS = 66_000;

/** A sender that knows a server with 20 workers. */
function settled(seed = 1, options: object = {}): { sender: Sender; server: Reply } {
  const sender = new Sender(options);
  const server = workers(20, 50, seed);
  sender.run(SETTLED_MS, server);
  return { sender, server };
}

describe('delay: the limit', () => {
  test.each([1, 2, 3])(
    'delay: a server with 20 workers has about 20 calls in flight, and is used, seed %i',
    (seed) => {
      const { sender, server } = settled(seed);
      let area = 0;
      const before = sender.succeeded;
      for (let n = 0; n < 3000; n++) {
        sender.run(10, server);
        area += sender.inFlight / 3000;
      }
      expect(sender.succeeded - before).toBeGreaterThan(0.85 * 30 * CAPACITY);
      expect(area).toBeGreaterThan(16);
      expect(area).toBeLessThan(26);
      const { baseRttMs = 0, knee = 0, headroom = 0, rttMs = 0 } = sender.key;
      expect(baseRttMs).toBeGreaterThan(35);
      expect(baseRttMs).toBeLessThan(70);
      expect(rttMs).toBeLessThan(100);
      expect(knee).toBeGreaterThan(8); // a test may be on
      expect(knee + headroom).toBeLessThan(30);
    },
  );

  test('delay: a server without a queue gets the maximum', () => {
    const sender = new Sender({ max: 70 });
    expect(sender.run(60_000, replyAfter(30))).toBeGreaterThan((0.9 * 70 * 1000) / 30);
    expect(sender.peak).toBe(70);
  });

  test('delay: nothing is learnt without demand', () => {
    const { sender } = settled();
    sender.run(15_000, replyAfter(50), { demand: 3 });
    const before = sender.key;
    expect(before.limit).toBe(3);
    sender.run(120_000, replyAfter(500), { demand: 3 });
    expect(sender.limit).toBe(3);
    expect(sender.key.baseRttMs).toBe(before.baseRttMs);
  });

  test.each([0, 1, 5, 10])(
    'delay: after a quiet period with %i in flight a flood starts there, at most doubled in each step',
    (demand) => {
      const { sender, server } = settled();
      const before = sender.limit;
      sender.run(25_000, server, { demand });
      const first = Math.max(1, demand);
      sender.peak = 0;
      sender.run(5, server);
      expect(sender.peak).toBeLessThanOrEqual(2 * first);
      const limits = [first];
      for (let n = 0; n < 2000; n++) {
        sender.run(1, server);
        if (sender.limit > (limits.at(-1) ?? 0)) limits.push(sender.limit);
        expect(sender.inFlight).toBeLessThanOrEqual(Math.max(...limits));
      }
      for (let n = 1; n < limits.length; n++)
        expect(limits[n]).toBeLessThanOrEqual(2 * limits[n - 1] + 1); // a fraction is rounded
      expect(Math.max(...limits)).toBeGreaterThan(0.7 * before);
    },
  );

  test('delay: a key that rests for ten minutes keeps what it has learnt of the round trip', () => {
    const { sender } = settled();
    const { baseRttMs = 0 } = sender.key;
    sender.run(1000, replyAfter(50), { demand: 0 });
    sender.now += 600_000;
    const server = workers(20, 50, 9);
    sender.run(3000, server);
    expect(sender.run(2000, server)).toBeGreaterThan(0.8 * CAPACITY);
    expect(sender.key.baseRttMs).toBeGreaterThan(baseRttMs / 2);
  });

  test('delay: outcomes ignored and failed teach nothing', () => {
    for (const outcome of ['ignored', 'failed'] as const) {
      const sender = new Sender({ initial: 7 });
      sender.run(30_000, replyAfter(20, outcome));
      expect(sender.limit).toBe(7);
      for (const learnt of ['rttMs', 'baseRttMs', 'pacePerSecond'])
        expect(sender.key).not.toHaveProperty(learnt);
    }
  });

  test('delay: replies in 0 ms, the maximum holds', () => {
    const { policy, state } = new Sender({ max: 5 });
    for (let n = 0, inFlight = 0; n < 200; n++) {
      while (inFlight < 50 && policy.check(state, 0, 1, 1).verdict === 'allow') inFlight++;
      expect(inFlight).toBeLessThanOrEqual(5);
      policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 1, rttMs: 0 }, 1);
      inFlight--;
    }
  });

  test('delay: 100 starts, each has found the server after 5 s', () => {
    const slow: number[] = [];
    for (let seed = 1; seed <= 100; seed++) {
      const sender = new Sender();
      const server = workers(20, 50, seed);
      sender.run(5000, server);
      if (sender.run(10_000, server) < 0.7 * CAPACITY) slow.push(seed);
    }
    expect(slow).toEqual([]);
  });

  test('delay: without rttMs the time since the check counts', () => {
    const [measured, plain] = [true, false].map((hasRtt) => {
      const sender = new Sender({ max: 30 });
      sender.run(20_000, workers(10, 20, 3), { hasRtt });
      return sender;
    });
    expect(plain.key).toEqual(measured.key);
    expect(plain.key.baseRttMs).toBeGreaterThan(10);
  });

  test('delay: streams that last 20 s do not starve it', () => {
    const server = workers(20, 50, 4);
    const random = seededRandom(4);
    const withStreams: Reply = (now) => (random() < 0.005 ? ['ok', 20_000] : server(now));
    const sender = new Sender();
    sender.run(60_000, withStreams);
    expect(sender.run(40_000, withStreams)).toBeGreaterThan(0.75 * CAPACITY);
  });
});

describe('delay: options', () => {
  test('delay: a cost of 3 counts as three calls in flight', () => {
    const sender = new Sender();
    sender.run(SETTLED_MS, replyAfter(40), { cost: 3, demand: 10 });
    const rate = sender.run(3000, replyAfter(40), { cost: 3, demand: 10 });
    expect(rate).toBeGreaterThan(0.95 * 250);
    expect(sender.key.inFlight).toBe(3 * sender.inFlight);
  });

  test('delay: a cost above the limit is admitted alone, a cost above the maximum never', () => {
    const { policy, state } = new Sender({ max: 8 });
    expect(policy.check(state, 0, 5, 0)).toMatchObject({ verdict: 'allow' });
    expect(policy.check(state, 0, 1, 0)).toMatchObject({ verdict: 'deny' });
    expect(policy.check(state, 0, 9, 0)).toMatchObject({ verdict: 'deny', retryAfterMs: Infinity });
  });

  test('delay: initial is the first limit, max is never exceeded', () => {
    const sender = new Sender({ initial: 12, max: 15 });
    sender.run(10, replyAfter(20));
    expect(sender.peak).toBe(12);
    sender.run(30_000, replyAfter(20));
    expect(sender.peak).toBe(15);
  });

  /** When the limit fell for a test, in two minutes on a server without a queue. */
  const testsOf = (options: object, random?: Random): number[] => {
    const sender = new Sender({ max: 20, ...options }, 0, undefined, random);
    const times: number[] = [];
    let last = 0;
    for (let n = 0; n < 12_000; n++) {
      sender.run(10, replyAfter(50));
      const { limit = 0, cause } = sender.key;
      if (cause === 'test' && limit < 0.8 * last) times.push(sender.now);
      last = limit;
    }
    return times;
  };
  const spansOf = (times: readonly number[]): number[] =>
    times.slice(1).map((at, n) => at - times[n]);

  test('delay: jitter 0 draws nothing, and a test comes every 10 s', () => {
    const times = testsOf({}); // random would throw
    expect(testsOf({ jitter: 0 })).toEqual(times);
    expect(times.length).toBeGreaterThanOrEqual(11);
    expect(Math.min(...spansOf(times))).toBeGreaterThan(9500);
    expect(Math.max(...spansOf(times))).toBeLessThan(10_500);
  });

  test('delay: jitter 0.5 delays tests by up to 5 s, those of two seeds by different times', () => {
    const [a, b] = [1, 2].map((seed) => testsOf({ jitter: 0.5 }, seededRandom(seed)));
    expect(Math.min(...spansOf(a))).toBeGreaterThan(9500);
    expect(Math.max(...spansOf(a))).toBeGreaterThan(12_500);
    expect(Math.max(...spansOf(a))).toBeLessThan(15_500);
    const apart = a.slice(1).filter((at) => b.every((other) => Math.abs(at - other) > 200));
    expect(apart.length).toBeGreaterThanOrEqual(a.length - 3);
  });
});

describe('delay: silence', () => {
  const HANG_AT = SETTLED_MS;

  /** Silent for `ms` with about 20 calls in flight. */
  const hang = (timeoutMs: number, ms: number, { isHeld = false, meanMs = 50, seed = 1 } = {}) => {
    const sender = new Sender();
    const server = silent(workers(20, meanMs, seed), HANG_AT, HANG_AT + ms, timeoutMs, isHeld);
    sender.run(HANG_AT - 10_000, server);
    const before = sender.run(10_000, server);
    const { inFlight, key } = sender;
    expect(inFlight).toBeGreaterThanOrEqual(9);
    sender.peak = 0;
    sender.run(ms, server);
    return { sender, server, before, inFlight, peak: sender.peak, rttMs: key.rttMs ?? 0 };
  };

  test.each([1000, 5000, 30_000, 60_000])(
    'delay: a server goes silent, timeout %i ms: never more in flight, one probe a second, limit 1',
    (timeoutMs) => {
      for (const seed of [1, 2, 3]) {
        const ms = 8 * timeoutMs; // one halving for each round of timeouts
        const { sender, inFlight, peak } = hang(timeoutMs, ms, { seed });
        // Calls that time out before a second has passed may round a limit with a fraction up.
        expect(peak).toBeLessThanOrEqual(timeoutMs > 1000 ? inFlight : inFlight + 1);
        const probes = sender.sentBetween(HANG_AT + 3000, HANG_AT + ms);
        for (let n = 1; n < probes.length; n++)
          expect(probes[n] - probes[n - 1]).toBeGreaterThan(999);
        const last = sender.sentBetween(HANG_AT + ms - 2 * timeoutMs - 2000, HANG_AT + ms);
        expect(last.length).toBeGreaterThanOrEqual(2); // a lost probe is followed by another
        expect(sender.limit).toBe(1);
        expect(sender.key.cause).toBe('silence');
      }
    },
  );

  test('delay: probes of a slow server wait five round trips', () => {
    const { sender, inFlight, peak, rttMs } = hang(5000, 60_000, { meanMs: 500 });
    expect(peak).toBeLessThanOrEqual(inFlight);
    expect(rttMs).toBeGreaterThan(300);
    const probes = sender.sentBetween(HANG_AT + 10_000, HANG_AT + 60_000);
    expect(probes.length).toBeGreaterThan(5);
    for (let n = 1; n < probes.length; n++)
      expect(probes[n] - probes[n - 1]).toBeGreaterThanOrEqual(4.99 * rttMs);
  });

  test.each([
    ['held', 1000, 10_000],
    ['held', 5000, 20_000],
    ['held', 30_000, 10_000],
    ['held', 30_000, 45_000],
    ['held', 60_000, 45_000],
    ['lost', 1000, 10_000],
    ['lost', 5000, 10_000],
    ['lost', 5000, 45_000],
    ['lost', 30_000, 45_000],
    ['lost', 60_000, 75_000],
  ])(
    'delay: calls %s, timeout %i ms, %i ms of silence, then 90 percent of the goodput within 5 s',
    (how, timeoutMs, ms) => {
      const isHeld = how === 'held';
      for (const seed of [1, 2, 3]) {
        const { sender, server, before } = hang(timeoutMs, ms, { isHeld, seed });
        sender.run(5000, server);
        expect(sender.run(10_000, server)).toBeGreaterThan(0.9 * before);
      }
    },
  );

  test('delay: a server that answers one call every two seconds is not flooded', () => {
    const { sender } = settled();
    const before = sender.limit;
    sender.peak = 0;
    let freeAt = sender.now;
    sender.run(120_000, (now) => {
      freeAt = Math.max(freeAt + 2000, now + 50);
      return freeAt - now < 30_000 ? ['ok', freeAt - now] : ['timeout', 30_000];
    });
    expect(sender.peak).toBeLessThanOrEqual(2 * before);
  });

  test('delay: a server that never answers never has more than `initial` in flight, and the limit falls to 1', () => {
    for (const timeoutMs of [500, 1000, 5000, 30_000]) {
      const sender = new Sender({ initial: 50, max: 100 });
      sender.run(3 * timeoutMs + 60_000, replyAfter(timeoutMs, 'timeout'));
      expect(sender.peak).toBeLessThanOrEqual(50);
      expect(sender.limit).toBe(1);
    }
  });

  test('delay: the calls of one silence halve the limit once', () => {
    const { sender, server } = settled();
    sender.run(1000, server, { demand: 0 });
    const { policy, state, now } = sender;
    const count = sender.limit;
    for (let n = 0; n < count; n++) policy.check(state, 0, 1, now);
    const end = { outcome: 'timeout', cost: 1, dueAt: now, rttMs: 1500 } as const;
    for (let n = 0; n < count; n++) policy.settle(state, 0, end, now + 1500);
    const after = policy.keyState(state, 0, now + 1500).limit ?? 0;
    expect(after).toBeGreaterThanOrEqual(Math.floor(count / 2) - 1);
    expect(after).toBeLessThanOrEqual(Math.ceil(count / 2) + 1);
  });
});

describe('delay: refusals', () => {
  /** 80 calls in any second of the clock; further calls are refused after 1 ms. */
  const quota = (): Reply => {
    let [second, taken] = [-1, 0];
    return (now) => {
      if (Math.floor(now / 1000) !== second) [second, taken] = [Math.floor(now / 1000), 0];
      return taken++ < 80 ? ['ok', 20] : ['busy', 1];
    };
  };

  test('delay: refusals above a quota set a pace that starts below the rate of successes', () => {
    const sender = new Sender({ initial: 10 });
    const server = quota();
    sender.run(30_000, server);
    const paces: number[] = [];
    const before = sender.sentAt.length;
    let succeeded = 0;
    for (let n = 0; n < 60; n++) {
      succeeded += sender.run(1000, server);
      paces.push(sender.key.pacePerSecond ?? Infinity);
    }
    expect(Math.min(...paces)).toBeLessThan(80);
    expect(Math.max(...paces)).toBeLessThan(160);
    expect(succeeded).toBeGreaterThan(0.8 * 60 * 80);
    expect(succeeded / (sender.sentAt.length - before)).toBeGreaterThan(0.8);
  });

  test.each([1, 50])(
    'delay: refused from the first call on, initial %i: few more calls, then a probe a second',
    (initial) => {
      const sender = new Sender({ initial });
      sender.run(10_000, replyAfter(5, 'busy'));
      expect(sender.sentAt.length).toBeLessThanOrEqual(2.5 * initial + 20);
      sender.run(20_000, replyAfter(5, 'busy'));
      const probes = sender.sentBetween(10_000, 30_000).length;
      expect(probes).toBeGreaterThanOrEqual(15);
      expect(probes).toBeLessThanOrEqual(22);
    },
  );

  test.each([1000, 10_000, 30_000, 60_000])(
    'delay: an outage of %i ms gets at most 40 calls more than the limit, then a probe a second, and is over soon after',
    (ms) => {
      for (const seed of [1, 2]) {
        const { sender, server } = settled(seed);
        const { now: from, limit } = sender;
        sender.run(ms, replyAfter(5, 'busy'));
        expect(sender.sentBetween(from, from + 10_000).length).toBeLessThanOrEqual(limit + 40);
        expect(sender.sentBetween(from + 10_000, from + ms).length).toBeLessThanOrEqual(ms / 900);
        sender.run(5000, server);
        expect(sender.run(10_000, server)).toBeGreaterThan(0.7 * CAPACITY);
      }
    },
  );

  test('delay: while refusals set a pace, a retry at the given time succeeds, and not before', () => {
    const sender = new Sender({ initial: 20 });
    sender.run(3000, replyAfter(5, 'busy'));
    const { policy, state, now } = sender;
    const refused = policy.check(state, 0, 1, now);
    const retryAfterMs = refused.verdict === 'deny' ? refused.retryAfterMs : Number.NaN;
    expect(retryAfterMs).toBeGreaterThan(1);
    expect(Number.isInteger(retryAfterMs)).toBe(true);
    expect(policy.available(state, 0, now)).toBe(0);
    expect(policy.check(state.slice(), 0, 1, now + retryAfterMs - 1.1).verdict).toBe('deny');
    expect(policy.check(state.slice(), 0, 1, now + retryAfterMs).verdict).toBe('allow');
  });

  test.each(['busy', 'timeout'] as const)(
    'delay: 5 percent of the calls end as %s by chance, nearly all of the rest succeeds',
    (outcome) => {
      const { sender, server } = settled();
      const random = seededRandom(5);
      const rare: Reply = (now) => (random() < 0.05 ? [outcome, 100] : server(now));
      sender.run(20_000, rare);
      expect(sender.run(40_000, rare)).toBeGreaterThan(0.8 * CAPACITY);
    },
  );

  test('delay: calls beyond 20 are lost, the limit is cut again and again', () => {
    let inFlight = 0;
    for (const seed of [1, 2, 3, 4, 5, 6]) {
      const random = seededRandom(seed);
      let ends: number[] = [];
      const dropping: Reply = (now) => {
        ends = ends.filter((at) => at > now);
        if (ends.length >= 20) return ['timeout', 1000];
        const rttMs = 50 * exponentialVariate(random);
        ends.push(now + rttMs);
        return ['ok', rttMs];
      };
      const sender = new Sender();
      sender.run(30_000, dropping);
      for (let n = 0; n < 3000; n++) {
        sender.run(10, dropping);
        inFlight += sender.inFlight / 3000 / 6;
      }
    }
    expect(inFlight).toBeLessThan(200); // 320 without cuts
  });
});

describe('delay: in the laboratory', () => {
  const measure = (name: string) => {
    const sink = CATALOGUE.find((each) => each.name === name);
    const create = findRule('delay');
    if (!sink || !create) throw new Error(`expected a sink ${name} and a rule delay`);
    return evaluate({ name: 'delay', create }, sink, [11, 12, 13]).median;
  };

  test.each([
    'mm20',
    'halved',
    'quota',
    'sharing',
    'times-2',
    'dropping',
    'lost-5',
    'random-5',
    'streams',
  ])('delay: sink %s, score at least 0.6', (name) =>
    expect(measure(name).score).toBeGreaterThanOrEqual(0.6),
  );

  test.each(['clients-8', 'clients-32'])(
    'delay: sink %s, equal parts, and at most half as many calls again as the best limit',
    (name) => {
      const { score, fairness, inFlight } = measure(name);
      expect(score).toBeGreaterThanOrEqual(0.6);
      expect(fairness).toBeGreaterThanOrEqual(0.8);
      expect(inFlight).toBeLessThanOrEqual(1.5);
    },
  );
});
