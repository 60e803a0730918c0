import { describe, expect, test } from 'vitest';
import { OUTCOMES, type Outcome, WHEN_SETTLED } from '../../core/decision.ts';
import { Heap } from '../../core/heap.ts';
import { exponentialVariate, type Random, seededRandom } from '../../core/random.ts';
import { CATALOGUE } from '../../simulator/laboratory/catalogue.ts';
import { findRule } from '../../simulator/laboratory/rules.ts';
import { evaluate } from '../../simulator/laboratory/score.ts';
import { createPolicy } from '../limit.ts';
import type { KeyState, Policy } from '../policy.ts';

const noRandom = (): number => {
  throw new Error('random must not be called');
};

const policyOf = (options: object = {}): Policy => createPolicy({ adaptive: options }, noRandom);

/** How a server replies to a call that is sent now. */
type Reply = (now: number) => readonly [outcome: Outcome, rttMs: number];

const replyAfter =
  (rttMs: number, outcome: Outcome = 'ok'): Reply =>
  () => [outcome, rttMs];

/** So many workers, and a queue without bound: exponential service times. */
function workers(count: number, meanMs: number, random: Random): Reply {
  const freeAt = new Array<number>(count).fill(0);
  return (now) => {
    const next = freeAt.indexOf(Math.min(...freeAt));
    freeAt[next] = Math.max(now, freeAt[next]) + meanMs * exponentialVariate(random);
    return ['ok', freeAt[next] - now];
  };
}

/** A sender on virtual time that has as many calls in flight as it may, up to its demand. */
class Sender {
  readonly policy: Policy;
  readonly state: Float64Array;
  now: number;
  /** How far the clock of the rule is ahead. */
  aheadMs = 0;
  sent = 0;
  succeeded = 0;
  #inFlight = 0;
  #sequence = 0;
  readonly #pending = new Heap<{ at: number; sequence: number; end: () => void }>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );

  constructor(options: object = {}, startAt = 0, freshAt?: number) {
    this.policy = policyOf(options);
    this.state = new Float64Array(this.policy.width);
    this.policy.init(this.state, 0, startAt, freshAt);
    this.now = startAt;
  }

  get #clock(): number {
    return this.now + this.aheadMs;
  }

  get key(): KeyState {
    return this.policy.keyState(this.state, 0, this.#clock);
  }

  get limit(): number {
    return this.key.limit ?? 0;
  }

  /** Goes on for so long, and returns the successes a second. */
  run(ms: number, reply: Reply, { demand = Infinity, cost = 1, hasRtt = true } = {}): number {
    const until = this.now + ms;
    const before = this.succeeded;
    for (let step = 0; step < 2e6 && this.now < until; step++) {
      const wakeAt = this.#send(reply, demand, cost, hasRtt);
      const next = this.#pending.peek();
      this.now = Math.min(until, wakeAt, next?.at ?? until);
      if (next && next.at <= this.now) this.#pending.pop()?.end();
    }
    return (1000 * (this.succeeded - before)) / ms;
  }

  /** Starts calls; returns when the next one may start if no call settles until then. */
  #send(reply: Reply, demand: number, cost: number, hasRtt: boolean): number {
    while (this.#inFlight < demand) {
      const decision = this.policy.check(this.state, 0, cost, this.#clock);
      if (decision.verdict === 'deny') {
        const { retryAfterMs } = decision;
        return retryAfterMs === WHEN_SETTLED ? Infinity : this.now + Math.max(1, retryAfterMs);
      }
      this.#call(reply(this.now), cost, hasRtt);
    }
    return Infinity;
  }

  #call([outcome, rttMs]: readonly [Outcome, number], cost: number, hasRtt: boolean): void {
    const sentAt = this.now;
    const dueAt = this.#clock;
    this.sent++;
    this.#inFlight++;
    const end = (): void => {
      this.#inFlight--;
      if (outcome === 'ok') this.succeeded++;
      const settlement = { outcome, cost, dueAt, ...(hasRtt && { rttMs: this.now - sentAt }) };
      this.policy.settle(this.state, 0, settlement, this.#clock);
    };
    this.#pending.push({ at: this.now + rttMs, sequence: this.#sequence++, end });
  }
}

/** A sender that has found the knee of a server with 20 workers of 50 ms each: 400 calls a second at best. */
function settled(seed = 1): { sender: Sender; server: Reply } {
  const sender = new Sender();
  const server = workers(20, 50, seededRandom(seed));
  sender.run(66_000, server); // between two tests
  return { sender, server };
}

describe('knee: the limit', () => {
  test('knee: a server with 20 workers gets about 20 calls, and is used', () => {
    const { sender, server } = settled();
    const rate = sender.run(30_000, server);
    expect(rate).toBeGreaterThan(0.85 * 400);
    const { limit = 0, baseRttMs = 0, knee = 0, headroom = 0 } = sender.key;
    expect(limit).toBeGreaterThan(12);
    expect(limit).toBeLessThan(32);
    expect(baseRttMs).toBeGreaterThan(35);
    expect(baseRttMs).toBeLessThan(75);
    expect(knee).toBeGreaterThan(12);
    expect(knee + headroom).toBeLessThan(34);
  });

  test('knee: a server without a queue gets the maximum', () => {
    const sender = new Sender({ max: 70 });
    sender.run(60_000, replyAfter(30));
    expect(sender.limit).toBeGreaterThan(45); // a test may be on
    expect(sender.limit).toBeLessThanOrEqual(70);
  });

  test('knee: nothing is learnt without demand', () => {
    const { sender } = settled();
    sender.run(5000, replyAfter(50), { demand: 3 });
    const before = sender.key;
    sender.run(120_000, replyAfter(500), { demand: 3 });
    expect(Math.abs(sender.limit - (before.limit ?? 0))).toBeLessThanOrEqual(1); // a fraction alternates
    expect(sender.key.baseRttMs).toBe(before.baseRttMs);
    expect(sender.key.ratePerSecond).toBe(before.ratePerSecond);
  });

  test('knee: a key that rests for ten minutes keeps what it has learnt', () => {
    const { sender, server } = settled();
    const { baseRttMs = 0 } = sender.key;
    sender.run(1000, server, { demand: 0 });
    sender.now += 600_000;
    expect(sender.run(2000, workers(20, 50, seededRandom(9)))).toBeGreaterThan(200); // of 400 a second
    expect(sender.key.baseRttMs).toBeGreaterThan(baseRttMs / 2);
  });

  test('knee: outcomes ignored and failed teach nothing', () => {
    for (const outcome of ['ignored', 'failed'] as const) {
      const sender = new Sender({ initial: 7 });
      sender.run(30_000, replyAfter(20, outcome));
      const { remaining, inFlight } = sender.key;
      expect(sender.key).toEqual({ limit: 7, remaining, inFlight });
    }
  });

  test('knee: without rttMs the time since the check counts', () => {
    const [measured, plain] = [true, false].map((hasRtt) => {
      const sender = new Sender({ max: 30 });
      sender.run(20_000, workers(10, 20, seededRandom(3)), { hasRtt });
      return sender;
    });
    expect(plain.key).toEqual(measured.key);
    expect(plain.key.baseRttMs).toBeGreaterThan(10);
  });

  test('knee: a cost of 3 counts as three calls in flight', () => {
    const sender = new Sender();
    sender.run(66_000, replyAfter(40), { cost: 3, demand: 10 });
    expect(sender.run(3000, replyAfter(40), { cost: 3, demand: 10 })).toBeGreaterThan(0.95 * 250);
    expect(sender.limit).toBeGreaterThanOrEqual(30);
    expect(sender.key.inFlight).toBeGreaterThanOrEqual(27); // one call may just have ended
  });

  test('knee: a cost above the limit is admitted alone, a cost above the maximum never', () => {
    const { policy, state } = new Sender({ max: 8 });
    expect(policy.check(state, 0, 5, 0)).toMatchObject({ verdict: 'allow' });
    expect(policy.check(state, 0, 1, 0)).toMatchObject({ verdict: 'deny' });
    expect(policy.check(state, 0, 9, 0)).toMatchObject({ verdict: 'deny', retryAfterMs: Infinity });
  });
});

describe('knee: refusals, timeouts', () => {
  test('knee: refused from the first call on, at most 20 more calls in 10 s', () => {
    for (const initial of [1, 50]) {
      const sender = new Sender({ initial });
      sender.run(10_000, replyAfter(5, 'busy'));
      expect(sender.sent).toBeLessThanOrEqual(initial + 20);
      expect(sender.sent).toBeGreaterThan(initial); // it probes
    }
  });

  test('knee: an outage gets at most 25 calls in 10 s, and is over soon after', () => {
    const { sender, server } = settled();
    const { limit } = sender;
    const before = sender.sent;
    sender.run(10_000, replyAfter(5, 'busy'));
    expect(sender.sent - before).toBeLessThanOrEqual(limit + 25);
    sender.run(20_000, server);
    expect(sender.run(10_000, server)).toBeGreaterThan(0.8 * 400);
  });

  test('knee: while refusals set a pace, a retry at the given time succeeds, and not before', () => {
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

  test('knee: one refusal in a hundred calls costs nothing', () => {
    const { sender, server } = settled();
    const random = seededRandom(5);
    const rare: Reply = (now) => (random() < 0.01 ? ['busy', 2] : server(now));
    expect(sender.run(60_000, rare)).toBeGreaterThan(0.85 * 400);
  });

  test('knee: refusals above a quota set a pace near it, and half of the calls or more succeed', () => {
    const sender = new Sender({ initial: 10 });
    let [second, taken] = [-1, 0];
    const quota: Reply = (now) => {
      if (Math.floor(now / 1000) !== second) [second, taken] = [Math.floor(now / 1000), 0];
      return taken++ < 80 ? ['ok', 20] : ['busy', 1];
    };
    sender.run(30_000, quota);
    const before = sender.sent;
    const rate = sender.run(30_000, quota);
    expect(rate).toBeGreaterThan(40);
    expect((30 * rate) / (sender.sent - before)).toBeGreaterThan(0.5);
  });

  test('knee: silence halves the limit again and again, down to one', () => {
    const { sender } = settled();
    sender.run(500, replyAfter(50), { demand: 0 });
    const { limit } = sender;
    sender.run(1100, replyAfter(1000, 'timeout'));
    expect(sender.limit).toBeGreaterThanOrEqual(Math.floor(limit / 2) - 1);
    expect(sender.limit).toBeLessThanOrEqual(Math.ceil(limit / 2));
    expect(sender.key.cause).toBe('silence');
    sender.run(10_000, replyAfter(1000, 'timeout'));
    expect(sender.limit).toBe(1);
  });

  test('knee: after a minute of silence the service is used again within half a minute', () => {
    const { sender } = settled();
    sender.run(60_000, replyAfter(1000, 'timeout'));
    const server = workers(20, 50, seededRandom(7));
    sender.run(30_000, server);
    expect(sender.run(10_000, server)).toBeGreaterThan(0.75 * 400);
  });

  test('knee: calls that were sent before a cut do not cut again', () => {
    const { sender } = settled();
    sender.run(1000, replyAfter(50), { demand: 0 });
    const { policy, state, limit, now } = sender;
    for (let n = 0; n < limit; n++) policy.check(state, 0, 1, now);
    for (let n = 0; n < limit; n++)
      policy.settle(state, 0, { outcome: 'timeout', cost: 1, dueAt: now, rttMs: 900 }, now + 900);
    expect(policy.keyState(state, 0, now + 900).limit).toBeGreaterThanOrEqual(
      Math.floor(limit / 2) - 1,
    );
  });
});

describe('knee: the state of a key', () => {
  test('knee: a new key may be removed, one that has learnt or is in flight is kept', () => {
    const { policy, state } = new Sender();
    expect(policy.removableAt(state, 0)).toBe(-Infinity);
    policy.check(state, 0, 1, 0);
    expect(policy.removableAt(state, 0)).toBe(Infinity);
    expect(policy.evictableAt(state, 0)).toBe(Infinity);
    policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, rttMs: 5 }, 5);
    expect(policy.removableAt(state, 0)).toBe(Infinity);
    expect(policy.evictableAt(state, 0)).toBeLessThan(Infinity);
  });

  test('knee: a key that was evicted too early starts with one call, and learns', () => {
    const sender = new Sender({ initial: 30 }, 0, 60_000);
    expect(sender.limit).toBe(1);
    const server = workers(20, 50, seededRandom(2));
    sender.run(60_000, server);
    expect(sender.run(10_000, server)).toBeGreaterThan(0.75 * 400);
  });

  test('knee: neighbours in the same array stay as they are', () => {
    const policy = policyOf();
    const state = new Float64Array(policy.width * 3).fill(-77);
    const i = policy.width;
    policy.init(state, i, 0);
    const random = seededRandom(4);
    let now = 0;
    for (let n = 0; n < 20_000; n++) {
      now += 10 * random();
      if (random() < 0.5) policy.check(state, i, 1, now);
      else settleRandomly(policy, state, i, now, random);
    }
    const neighbours = [...state.subarray(0, i), ...state.subarray(2 * i)];
    expect(new Set(neighbours)).toEqual(new Set([-77]));
  });

  test('knee: two keys that take turns learn as each does alone', () => {
    const run = (seeds: readonly number[]): string[] => {
      const pairs = seeds.map((seed) => ({
        sender: new Sender(),
        server: workers(10 * seed, 50, seededRandom(seed)),
      }));
      for (let turn = 0; turn < 100; turn++)
        for (const { sender, server } of pairs) sender.run(300, server);
      return pairs.map(({ sender }) => sender.state.join(' '));
    };
    expect(run([1, 2])).toEqual([...run([1]), ...run([2])]);
  });

  test('knee: a clock that goes backwards teaches nothing, and grants nothing early', () => {
    const { sender } = settled();
    sender.run(1000, replyAfter(50), { demand: 0 });
    const { policy, state, now, limit } = sender;
    const { baseRttMs, ratePerSecond } = sender.key;
    for (let n = 1; n <= 500; n++) {
      const at = now - 20 * n;
      policy.check(state, 0, 1, at);
      policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: at, rttMs: 5 }, at);
    }
    expect(policy.keyState(state, 0, now)).toMatchObject({ limit, baseRttMs, ratePerSecond });

    const paced = new Sender({ initial: 20 });
    paced.run(5000, replyAfter(5, 'busy'));
    const refused = paced.policy.check(paced.state, 0, 1, paced.now);
    expect(refused.verdict).toBe('deny');
    for (let n = 1; n < 100; n++) {
      const earlier = paced.policy.check(paced.state, 0, 1, paced.now - 100 * n);
      expect(earlier.verdict).toBe('deny');
    }
  });
});

test('knee: a clock that is set back every few seconds changes neither rate nor limit much', () => {
  const { sender, server } = settled();
  let rate = 0;
  for (let n = 0; n < 20; n++) {
    sender.aheadMs -= 1000;
    rate += sender.run(3000, server) / 20;
  }
  expect(rate).toBeGreaterThan(0.8 * 400);
  const { limit = 0, baseRttMs = 0 } = sender.key;
  expect(limit).toBeGreaterThan(12);
  expect(limit).toBeLessThan(34);
  expect(baseRttMs).toBeGreaterThan(35);
  expect(baseRttMs).toBeLessThan(75);
});

function settleRandomly(
  policy: Policy,
  state: Float64Array,
  i: number,
  now: number,
  random: Random,
): void {
  const outcome = random() < 0.8 ? 'ok' : OUTCOMES[Math.floor(random() * OUTCOMES.length)];
  const rttMs = random() < 0.05 ? 0 : 20 * exponentialVariate(random);
  policy.settle(state, i, { outcome, cost: 1, dueAt: now - rttMs, rttMs }, now);
}

describe('knee: random traffic, 100,000 steps', () => {
  const KINDS: Readonly<Record<string, readonly Outcome[]>> = {
    'all outcomes': OUTCOMES,
    'mostly successes': [...new Array<Outcome>(40).fill('ok'), ...OUTCOMES],
    'half refused': ['ok', 'busy'],
  };

  test.each(Object.keys(KINDS))(
    'knee: %s, every number is finite and within its bounds',
    (kind) => {
      const outcomes = KINDS[kind];
      for (const [seed, max] of [1, 7, 300].entries()) {
        const random = seededRandom(seed);
        const policy = policyOf({ initial: Math.ceil(max / 2), max });
        const state = new Float64Array(policy.width);
        let now = [0, 1.7e12, 1e15][seed];
        policy.init(state, 0, now);
        const open: { cost: number; at: number }[] = [];
        for (let step = 0; step < 100_000; step++) {
          now += spanOf(random);
          const { limit: before = 0 } = policy.keyState(state, 0, now);
          if (random() < 0.6) {
            const cost = random() < 0.9 ? 1 : Math.ceil(3 * random());
            if (policy.check(state, 0, cost, now).verdict === 'allow') {
              const inFlight = open.reduce((sum, call) => sum + call.cost, cost);
              if (open.length > 0) expect(inFlight).toBeLessThanOrEqual(before);
              open.push({ cost, at: now });
            }
          } else {
            const [call] = open.splice(Math.floor(open.length * random()), 1);
            const { cost, at: dueAt } = call ?? { cost: 2, at: now }; // more settled than started
            const outcome = outcomes[Math.floor(outcomes.length * random())];
            const rttMs = random() < 0.1 ? undefined : Math.max(0, now - dueAt);
            policy.settle(state, 0, { outcome, cost, dueAt, rttMs }, now);
          }
          requireBounded(policy.keyState(state, 0, now), max, open.length);
        }
      }
    },
  );

  /** Mostly close together, sometimes a pause, sometimes a step back. */
  function spanOf(random: Random): number {
    const kind = random();
    if (kind < 0.3) return 0;
    if (kind < 0.95) return 10 * random();
    if (kind < 0.99) return 300 * random();
    return kind < 0.995 ? 100_000 * random() : -5000 * random();
  }

  /** Without `expect`, which would take longer than the rule. */
  function requireBounded(key: KeyState, max: number, open: number): void {
    const { limit = 0, inFlight = -1 } = key;
    const numbers = Object.values(key).filter((value) => typeof value === 'number');
    const areFinite = numbers.every((value) => Number.isFinite(value) && value >= 0);
    const isBounded = Number.isInteger(limit) && limit >= 1 && limit <= max;
    if (!areFinite || !isBounded || inFlight < open)
      throw new Error(
        `expected numbers within their bounds and ${open} calls, got ${JSON.stringify(key)}`,
      );
  }
});

describe('knee: in the laboratory', () => {
  const measure = (name: string) => {
    const sink = CATALOGUE.find((each) => each.name === name);
    const create = findRule('knee');
    if (!sink || !create) throw new Error(`expected a sink ${name} and a rule knee`);
    return evaluate({ name: 'knee', create }, sink, [1, 2, 3]).median;
  };

  test('knee: 20 workers, at least 85 percent of the best goodput with at most 1.3 times the calls', () => {
    const { goodput, inFlight } = measure('mm20');
    expect(goodput).toBeGreaterThan(0.85);
    expect(inFlight).toBeLessThan(1.3);
  });

  test('knee: a capacity that is halved and restored, at least 80 percent of the best goodput', () => {
    const { goodput, meanRtt } = measure('halved');
    expect(goodput).toBeGreaterThan(0.8);
    expect(meanRtt).toBeLessThan(1.5);
  });

  test('knee: an outage of ten seconds gets at most 25 calls', () => {
    expect(measure('outage').sentInSpell).toBeLessThanOrEqual(25);
  });

  test.each([
    ['twice as many workers from one moment on', 'doubled', 0.8],
    ['calls that arrive at random and are lost if they must wait', 'open', 0.9],
    ['5 percent of the calls refused at random', 'random-5', 0.8],
    ['calls that take 3 times as long for 20 s', 'slower', 0.75],
  ])('knee: %s, most of the best goodput', (_, name, least) => {
    expect(measure(name).goodput).toBeGreaterThan(least);
  });

  test('knee: streams of minutes that end, calls still count as stuck after the same time', () => {
    const policy = policyOf({});
    const state = new Float64Array(policy.width);
    let now = 1_000_000;
    policy.init(state, 0, now);
    const settle = (rttMs: number): void =>
      policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: now - rttMs, rttMs }, now);
    const call = (rttMs: number): void => {
      policy.check(state, 0, 1, now);
      now += rttMs;
      settle(rttMs);
    };
    for (let n = 0; n < 200; n++) call(50);
    for (let n = 0; n < 20; n++) settle(300_000);
    for (let n = 0; n < 50; n++) policy.check(state, 0, 1, now);
    const refusal = policy.check(state, 0, 1, now);
    // 20 mean round trips, not 20 times the length of a stream
    if (refusal.verdict !== 'deny') throw new Error('expected a refusal');
    expect(refusal.retryAfterMs).toBeLessThanOrEqual(10_000);
  });
});
