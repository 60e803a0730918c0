/**
 * Properties that hold for every policy under random traffic.
 *
 * A PolicyCase is a policy with random options, and traffic near its limit, so that both verdicts are frequent. The first
 * test holds this: 20 to 80 % of the checks are granted. A clock starts at zero, at a real time of day, or at 1e15, where
 * a double resolves only eighths of a millisecond.
 */

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Decision, NEVER, OUTCOMES, type Outcome } from '../src/core/decision.ts';
import { seededRandom } from '../src/core/random.ts';
import type { BucketOptions } from '../src/policies/bucket.ts';
import { createPolicy, type Limit } from '../src/policies/limit.ts';
import type { Policy } from '../src/policies/policy.ts';
import { RAMP_MODES, type RampOptions } from '../src/policies/ramp.ts';
import type { SpacingOptions } from '../src/policies/spacing.ts';
import { formatDecision } from './support/scenario.ts';

// ─── One key ────────────────────────────────────────────────────────────────────────────────────

interface Permit {
  readonly cost: number;
  readonly checkedAt: number;
  readonly dueAt: number;
}

class Key {
  readonly policy: Policy;
  readonly state: Float64Array;
  /** Granted and not settled. */
  readonly permits: Permit[] = [];

  constructor(policy: Policy, now: number, freshAt?: number) {
    this.policy = policy;
    this.state = new Float64Array(policy.width);
    policy.init(this.state, 0, now, freshAt);
  }

  /** An independent copy. */
  fork(): Key {
    const copy = new Key(this.policy, 0);
    copy.state.set(this.state);
    copy.permits.push(...this.permits);
    return copy;
  }

  /** The same key after a removal: new state, and its calls are still in flight. */
  recreate(now: number, freshAt?: number): Key {
    const recreated = new Key(this.policy, now, freshAt);
    recreated.permits.push(...this.permits);
    return recreated;
  }

  check(cost: number, now: number): Decision {
    const decision = this.policy.check(this.state, 0, cost, now);
    if (decision.verdict !== 'deny' && cost > 0) {
      const dueAt = decision.verdict === 'wait' ? now + decision.waitMs : now;
      this.permits.push({ cost, checkedAt: now, dueAt });
    }
    return decision;
  }

  /** Settles one of the permits, if there is one; returns it and the cost that was returned. */
  settle(
    { which, outcome, used }: Step,
    now: number,
  ): { permit: Permit; back: number } | undefined {
    const [permit] = this.permits.splice(which % Math.max(1, this.permits.length), 1);
    if (permit === undefined) return undefined;
    const { cost, checkedAt, dueAt } = permit;
    const rttMs = Math.max(0, now - checkedAt);
    const reallyUsed = outcome === 'ok' ? Math.round(cost * used) : cost;
    this.policy.settle(this.state, 0, { outcome, cost, used: reallyUsed, dueAt, rttMs }, now);
    return { permit, back: outcome === 'ignored' ? cost : cost - reallyUsed };
  }

  update(hits: number, now: number): void {
    this.policy.update(this.state, 0, { hits }, now);
  }

  /** What a check would allow, read from a copy. */
  available(now: number): number {
    return this.policy.available(this.state.slice(), 0, now);
  }

  keyState(now: number) {
    return this.policy.keyState(this.state, 0, now);
  }
}

const isGranted = (decision: Decision): boolean => decision.verdict !== 'deny';

// ─── Traffic ─────────────────────────────────────────────────────────────────────────────────────

interface Step {
  /** Time since the previous step, in units of `unitMs`. */
  readonly pace: number;
  readonly act: 'check' | 'settle' | 'update';
  readonly cost: number;
  /** settle: which permit, the outcome, and the used fraction of the cost. */
  readonly which: number;
  readonly outcome: Outcome;
  readonly used: number;
}

interface Tuning {
  readonly maxCost?: number;
  readonly maxPace?: number;
  /** How many of ten steps settle. */
  readonly settles?: number;
  readonly outcomes?: readonly Outcome[];
}

interface PolicySetting {
  readonly limit: Limit;
  /** About the time after which the limit allows one more call. */
  readonly unitMs: number;
}

interface PolicyCase {
  readonly name: string;
  readonly setting: fc.Arbitrary<PolicySetting>;
  readonly tuning: Tuning;
}

const STARTS = [0, 1_700_000_000_123.456, 1e15];

const startAt = fc.constantFrom(...STARTS);

/** Mostly short intervals, sometimes a pause. */
const paceOf = (max: number) =>
  fc.oneof(
    { weight: 3, arbitrary: fc.constant(0) },
    { weight: 12, arbitrary: fc.integer({ min: 0, max: 1_000 }).map((n) => (n / 1_000) * max) },
    { weight: 1, arbitrary: fc.integer({ min: 1, max: 20 }) },
  );

const stepOf = ({ maxCost = 3, maxPace = 2, settles = 2, outcomes = OUTCOMES }: Tuning) =>
  fc.record<Step>({
    pace: paceOf(maxPace),
    act: fc.oneof(
      { weight: 19 - 2 * settles, arbitrary: fc.constant('check' as const) },
      { weight: 2 * settles, arbitrary: fc.constant('settle' as const) },
      { weight: 1, arbitrary: fc.constant('update' as const) },
    ),
    cost: fc.integer({ min: 1, max: maxCost }),
    which: fc.nat(20),
    outcome: fc.constantFrom(...outcomes),
    used: fc.constantFrom(0, 0.5, 1),
  });

const trafficOf = (tuning: Tuning) =>
  fc.array(stepOf(tuning), { minLength: 1, maxLength: 120, size: 'max' });

// ─── Cases ───────────────────────────────────────────────────────────────────────────────────────

const rates = fc.oneof(
  fc.constantFrom(1 / 86_400, 1 / 3_600, 0.01, 1 / 3, 1, 7, 33.3, 1_000, 77_777, 1_000_000),
  fc.integer({ min: 1, max: 10_000 }).map((tenths) => tenths / 10),
);
const bursts = fc.integer({ min: 1, max: 10 });

const bucketSetting = fc
  .record({ rate: rates, burst: bursts })
  .map((bucket) => ({ limit: { bucket }, unitMs: 1_000 / bucket.rate }));

const spacingSetting = fc
  .record({
    every: fc.oneof(
      fc.constantFrom(0.1, 1 / 3, 0.7, 1, 33.3, 6_000),
      fc.integer({ min: 1, max: 10_000 }).map((tenths) => tenths / 10),
    ),
    reserve: fc.nat(4),
  })
  .map((spacing) => ({ limit: { spacing }, unitMs: spacing.every }));

const windowSetting = fc
  .record({
    limit: fc.integer({ min: 1, max: 12 }),
    per: fc.constantFrom(7.7, 10, 1000, 3_333, 60_000),
    steps: fc.integer({ min: 1, max: 20 }),
  })
  .map((window) => ({ limit: { window }, unitMs: window.per / window.limit }));

const rampOf = (modes: readonly (typeof RAMP_MODES)[number][]) =>
  fc
    .record({
      min: fc.integer({ min: 2, max: 80 }).map((quarters) => quarters / 4),
      growth: fc.nat(30),
      over: fc.integer({ min: 1, max: 12 }).map((seconds) => seconds * 1_000),
      mode: fc.constantFrom(...modes),
      threshold: fc.constantFrom(0, 50, 80, 100),
      rampDown: fc.constantFrom(50, 100),
      coolDown: fc.constantFrom(undefined, 2_000),
    })
    .map(({ growth, coolDown, ...rest }) => {
      const ramp = { ...rest, max: rest.min + growth, ...(coolDown ? { coolDown } : {}) };
      return { limit: { ramp }, unitMs: 250 };
    });

const busySetting = fc
  .record({
    max: fc.integer({ min: 1, max: 30 }),
    recover: fc.constantFrom({}, { recoverRate: 0.1 }, { recoverRate: 0.5 }, { recoverValue: 2 }),
  })
  .map(({ max, recover }) => ({ limit: { busy: { max, ...recover } }, unitMs: 150 }));

const adaptiveSetting = fc
  .record({
    initial: fc.integer({ min: 1, max: 5 }),
    max: fc.integer({ min: 5, max: 12 }),
    decreaseRatio: fc.constantFrom(0.5, 0.9),
    slowStart: fc.boolean(),
    jitter: fc.constantFrom(0, 0.5),
  })
  .map((adaptive) => ({ limit: { adaptive }, unitMs: 20 }));

const bothOf = (...parts: readonly fc.Arbitrary<PolicySetting>[]) =>
  fc.tuple(...parts).map((settings) => ({
    limit: { all: settings.map(({ limit }) => limit) },
    unitMs: Math.max(...settings.map(({ unitMs }) => unitMs)),
  }));

/** Two limits of similar strength, so that each of them refuses some checks. */
const twoBuckets = fc
  .record({ rate: rates, burst: bursts, factor: fc.constantFrom(2, 3, 5) })
  .map(({ rate, burst, factor }) => ({
    limit: {
      all: [
        { bucket: { rate, burst } },
        { bucket: { rate: rate / factor, burst: burst * factor } },
      ],
    },
    unitMs: (1_000 / rate) * factor * 0.7,
  }));

const BUCKET: PolicyCase = { name: 'bucket', setting: bucketSetting, tuning: {} };
const SPACING: PolicyCase = {
  name: 'spacing',
  setting: spacingSetting,
  tuning: { maxCost: 1, maxPace: 1.4, settles: 1 },
};
const WINDOW: PolicyCase = { name: 'window', setting: windowSetting, tuning: {} };
const RAMP: PolicyCase = {
  name: 'ramp',
  setting: rampOf(RAMP_MODES),
  tuning: { maxCost: 8, maxPace: 1 },
};
const SCHEDULED: PolicyCase = {
  name: 'ramp, scheduled',
  setting: rampOf(['scheduled']),
  tuning: { maxCost: 20, maxPace: 1 },
};
const BUSY: PolicyCase = {
  name: 'busy',
  setting: busySetting,
  tuning: { maxPace: 1.5, outcomes: ['ok', 'ok', 'ok', 'ok', 'busy', 'ignored'] },
};
const ADAPTIVE: PolicyCase = {
  name: 'adaptive',
  setting: adaptiveSetting,
  tuning: {
    maxCost: 2,
    settles: 4,
    outcomes: ['ok', 'ok', 'ok', 'busy', 'timeout', 'failed', 'ignored'],
  },
};
const TWO_BUCKETS: PolicyCase = { name: 'all of two buckets', setting: twoBuckets, tuning: {} };
const SPACED_BUCKET: PolicyCase = {
  name: 'all of a bucket and spacing',
  setting: bothOf(
    bucketSetting.map(({ unitMs, limit: { bucket } }) => ({
      limit: { bucket },
      unitMs: unitMs / 2,
    })),
    spacingSetting.map(({ limit: { spacing } }) => ({
      limit: { spacing },
      unitMs: spacing.every / 2,
    })),
  ),
  tuning: { maxCost: 1, maxPace: 2.5, settles: 1 },
};
/** Spacing grants about twice as fast as the window, so that both refuse some checks. */
const SPACED_WINDOW: PolicyCase = {
  name: 'all of a window and spacing',
  setting: fc
    .tuple(windowSetting, fc.record({ pace: fc.constantFrom(0.3, 0.5, 0.8), reserve: fc.nat(6) }))
    .map(([{ limit, unitMs }, { pace, reserve }]) => ({
      limit: { all: [limit, { spacing: { every: unitMs * pace, reserve } }] },
      unitMs,
    })),
  tuning: { maxCost: 1, maxPace: 1.2, settles: 1 },
};
const BUSY_BUCKET: PolicyCase = {
  name: 'all of busy and a bucket',
  setting: fc.tuple(busySetting, bursts).map(([{ limit }, burst]) => ({
    limit: { all: [limit, { bucket: { rate: limit.busy.max * 0.7, burst } }] },
    unitMs: 1_500 / limit.busy.max,
  })),
  tuning: { maxPace: 1, outcomes: BUSY.tuning.outcomes ?? OUTCOMES },
};

const POLICY_CASES = [
  BUCKET,
  SPACING,
  WINDOW,
  RAMP,
  SCHEDULED,
  BUSY,
  ADAPTIVE,
  TWO_BUCKETS,
  SPACED_BUCKET,
  SPACED_WINDOW,
  BUSY_BUCKET,
];

/**
 * Cases in which a key that was refused more can be compared call by call. Not a window beside spacing: the window counts
 * a call when its reserved slot is due, so a key that was refused the slot has capacity back sooner.
 */
const COMPARABLE = POLICY_CASES.filter((policyCase) => policyCase !== SPACED_WINDOW);

// ─── Running a property ──────────────────────────────────────────────────────────────────────────

interface Run extends PolicySetting {
  readonly policy: Policy;
  readonly startAt: number;
  readonly steps: readonly Step[];
}

const inputOf = ({ setting, tuning }: PolicyCase) =>
  fc.record({ setting, startAt, steps: trafficOf(tuning), seed: fc.nat(99) });

type RunInput = ReturnType<typeof inputOf> extends fc.Arbitrary<infer Value> ? Value : never;

/** fast-check prints the input of a failed run: only numbers, from which the policy is created. */
const createRun = ({ setting, startAt, steps, seed }: RunInput): Run => ({
  ...setting,
  startAt,
  steps,
  policy: createPolicy(setting.limit, seededRandom(seed)),
});

/** Asserts a property for random runs of a case; a failure prints the seed and the shortest input. */
function always(policyCase: PolicyCase, claim: (run: Run) => void): void {
  fc.assert(
    fc.property(inputOf(policyCase), (input) => claim(createRun(input))),
    { numRuns: 200 },
  );
}

/** One test per case. */
function over(
  cases: readonly PolicyCase[],
  claim: string,
  check: (policyCase: PolicyCase) => void,
): void {
  for (const policyCase of cases) test(`${policyCase.name}: ${claim}`, () => check(policyCase));
}

/** Replays the steps; `seen` is called after each check, before the next step. Returns the time at the end. */
function replay(
  key: Key,
  { steps, unitMs, startAt }: Pick<Run, 'steps' | 'unitMs' | 'startAt'>,
  seen: (event: { now: number; cost: number; decision: Decision }) => void = () => {},
): number {
  let now = startAt;
  for (const step of steps) {
    now += step.pace * unitMs;
    if (step.act === 'check') {
      seen({ now, cost: step.cost, decision: key.check(step.cost, now) });
    } else if (step.act === 'settle') {
      key.settle(step, now);
    } else {
      key.update(step.cost, now);
    }
  }
  return now;
}

const checksOf = (steps: readonly Step[]): readonly Step[] =>
  steps.filter(({ act }) => act === 'check');

/** The decisions of a run, as lines that can be compared. */
function decisionsOf(key: Key, run: Pick<Run, 'steps' | 'unitMs' | 'startAt'>): string[] {
  const decisions: string[] = [];
  replay(key, run, ({ now, cost, decision }) =>
    decisions.push(`${now} check ${cost} → ${formatDecision(decision)}`),
  );
  return decisions;
}

// ─── Properties ──────────────────────────────────────────────────────────────────────────────────

describe('generated traffic', () => {
  over(POLICY_CASES, '20 to 80 % of the checks are granted', (policyCase) => {
    let [granted, checked] = [0, 0];
    for (const run of fc.sample(inputOf(policyCase), { numRuns: 200, seed: 1 }).map(createRun)) {
      replay(new Key(run.policy, run.startAt), run, ({ decision }) => {
        checked++;
        if (isGranted(decision)) granted++;
      });
    }
    expect(granted / checked).toBeGreaterThan(0.2);
    expect(granted / checked).toBeLessThan(0.8);
  });
});

describe('bound of the policy', () => {
  interface Grant {
    readonly at: number;
    readonly cost: number;
  }

  /** The largest overshoot over burst and rate in any interval between two grants. */
  function overshootOf(grants: readonly Grant[], rate: number, burst: number): number {
    let worst = -Infinity;
    for (let from = 0; from < grants.length; from++) {
      let sum = 0;
      for (let to = from; to < grants.length; to++) {
        const [first, last] = [grants[from] as Grant, grants[to] as Grant];
        sum += last.cost;
        worst = Math.max(worst, sum - burst - ((last.at - first.at) * rate) / 1_000);
      }
    }
    return worst;
  }

  const toleranceOf = ({ burst = 1 }: BucketOptions): number => 2e-6 + burst * 1e-9;

  function grantsOf({ policy, steps, unitMs, startAt }: Run): Grant[] {
    const grants: Grant[] = [];
    replay(new Key(policy, startAt), { steps: checksOf(steps), unitMs, startAt }, (event) => {
      if (isGranted(event.decision)) grants.push({ at: event.now, cost: event.cost });
    });
    return grants;
  }

  test('bucket: at most burst plus rate in any interval', () => {
    always(BUCKET, (run) => {
      const { bucket } = run.limit as { bucket: BucketOptions };
      const overshoot = overshootOf(grantsOf(run), bucket.rate as number, bucket.burst as number);
      expect(overshoot).toBeLessThanOrEqual(toleranceOf(bucket));
    });
  });

  test('window: at most the limit in any interval of its length', () => {
    always(WINDOW, (run) => {
      const { limit, per } = (run.limit as { window: { limit: number; per: number } }).window;
      const grants = grantsOf(run);
      for (const [n, { at }] of grants.entries()) {
        const inside = grants.slice(n).filter((other) => other.at - at < per - 1e-3);
        expect(inside.reduce((sum, { cost }) => sum + cost, 0)).toBeLessThanOrEqual(limit);
      }
    });
  });

  test('all of two buckets: at most burst plus rate of each in any interval', () => {
    always(TWO_BUCKETS, (run) => {
      const grants = grantsOf(run);
      for (const { bucket } of (run.limit as { all: { bucket: BucketOptions }[] }).all) {
        const overshoot = overshootOf(grants, bucket.rate as number, bucket.burst as number);
        expect(overshoot).toBeLessThanOrEqual(toleranceOf(bucket));
      }
    });
  });

  /** When each permit that was not returned is due, and the most reserved slots at any time. */
  function slotsOf({ policy, steps, unitMs, startAt }: Run) {
    const key = new Key(policy, startAt);
    const dues: number[] = [];
    let maxWaiting = 0;
    let now = startAt;
    for (const step of steps) {
      now += step.pace * unitMs;
      if (step.act === 'check') {
        const decision = key.check(1, now);
        if (isGranted(decision)) dues.push(key.permits.at(-1)?.dueAt as number);
      } else if (step.act === 'settle') {
        const settled = key.settle(step, now);
        if (settled && step.outcome === 'ignored')
          dues.splice(dues.indexOf(settled.permit.dueAt), 1);
      }
      // A slot that is due within two microseconds counts as due.
      maxWaiting = Math.max(maxWaiting, dues.filter((due) => due > now + 0.002).length);
    }
    return { dues: dues.toSorted((a, b) => a - b), maxWaiting };
  }

  test('all of a window and spacing: at most the limit of the window, counted when calls are due', () => {
    always(SPACED_WINDOW, (run) => {
      const [{ window }] = (run.limit as { all: [{ window: { limit: number; per: number } }] }).all;
      const steps = run.steps.map((step) => ({ ...step, outcome: 'ignored' as const }));
      const { dues } = slotsOf({ ...run, steps }); // a call is used completely or not at all
      for (const [n, due] of dues.entries()) {
        const inside = dues.slice(n).filter((other) => other - due < window.per - 1e-3);
        expect(inside.length).toBeLessThanOrEqual(window.limit);
      }
    });
  });

  over(
    [SPACING, SPACED_BUCKET, SPACED_WINDOW],
    'permits are at least `every` apart, and at most `reserve` slots are reserved',
    (policyCase) => {
      always(policyCase, (run) => {
        const parts = 'all' in run.limit ? run.limit.all : [run.limit];
        const { spacing } = parts.find((part) => 'spacing' in part) as { spacing: SpacingOptions };
        const every = spacing.every as number;
        const { dues, maxWaiting } = slotsOf(run);
        dues.slice(1).forEach((due, n) => {
          expect(due - (dues[n] as number)).toBeGreaterThanOrEqual(every * (1 - 1e-9) - 1e-9);
        });
        expect(maxWaiting).toBeLessThanOrEqual(spacing.reserve as number);
      });
    },
  );

  /** The documented rule, computed from the previous second that had a call. */
  function nextLevel(
    { min, max, over, mode, threshold = 100, coolDown = 0, rampDown = 100 }: RampOptions,
    { level, left }: { level: number; left: number },
    gap: number,
  ): number {
    const slope = ((max - min) / (over as number)) * 1_000;
    const down = (slope * rampDown) / 100;
    const isUsed = (1 - left / level) * 100 >= threshold - 1e-6;
    const idle = Math.max(0, gap - 1 - Math.floor((coolDown as number) / 1_000));
    const within = (wanted: number) => Math.min(max, Math.max(min, wanted));
    if (mode === 'scheduled') return within(level + slope * gap);
    if (mode === 'relaxed') return within(level + slope);
    if (mode === 'only-if-used') return isUsed ? within(level + slope) : level;
    return within(within(isUsed ? level + slope : level - down) - down * idle);
  }

  over(
    [RAMP, SCHEDULED],
    'the level of each second is the documented one, and bounds its calls',
    (policyCase) => {
      always(policyCase, ({ policy, limit, steps, unitMs, startAt }) => {
        const { ramp } = limit as { ramp: RampOptions };
        const key = new Key(policy, startAt);
        let now = startAt;
        let second = Number.NaN;
        let level = ramp.min;
        let left = 0;
        for (const { pace, cost } of checksOf(steps)) {
          now += pace * unitMs;
          const thisSecond = Math.floor(now / 1_000);
          if (thisSecond !== second) {
            if (!Number.isNaN(second))
              level = nextLevel(ramp, { level, left }, thisSecond - second);
            left = Math.floor(level + 1e-9);
            second = thisSecond;
          }
          expect(key.keyState(now).pool).toBeCloseTo(level, 6);
          const isAllowed = isGranted(key.check(cost, now));
          expect(isAllowed).toBe(cost <= left);
          if (isAllowed) left -= cost;
        }
      });
    },
  );

  test('ramp: members with ranks never take more than the level together', () => {
    const fleet = fc.record({
      size: fc.integer({ min: 2, max: 6 }),
      min: fc.integer({ min: 1, max: 12 }),
      checks: fc.array(
        fc.record({ member: fc.nat(5), pace: fc.nat(200), max: fc.integer({ min: 1, max: 6 }) }),
        { minLength: 1, maxLength: 100, size: 'max' },
      ),
    });
    fc.assert(
      fc.property(fleet, ({ size, min, checks }) => {
        const ramp = { min, max: min + 9, over: 4_000, mode: 'scheduled' as const };
        const policy = createPolicy({ ramp }, seededRandom(1));
        const members = Array.from({ length: size }, (_, rank) => {
          const key = new Key(policy, 0);
          key.policy.update(key.state, 0, { poolSize: size, rank }, 0);
          key.available(0);
          key.policy.available(key.state, 0, 0); // all start to grow in the same second
          return key;
        });
        let now = 0;
        const taken = new Map<number, number>();
        for (const { member, pace, max } of checks) {
          now += pace;
          const key = members[member % size] as Key;
          const got = Math.min(max, key.available(now));
          if (got > 0) expect(isGranted(key.check(got, now))).toBe(true);
          const second = Math.floor(now / 1_000);
          taken.set(second, (taken.get(second) ?? 0) + got);
          const level = Math.min(ramp.max, min + (9 / 4) * second);
          expect(taken.get(second)).toBeLessThanOrEqual(Math.floor(level));
        }
      }),
    );
  });

  test('adaptive: at most its limit in flight, or one call alone; the limit is whole and within bounds', () => {
    always(ADAPTIVE, ({ policy, limit, steps, unitMs, startAt }) => {
      const { max = 200 } = (limit as { adaptive: { max?: number } }).adaptive;
      const key = new Key(policy, startAt);
      let now = startAt;
      for (const step of steps) {
        now += step.pace * unitMs;
        const before = key.keyState(now).limit as number;
        if (step.act === 'settle') key.settle(step, now);
        else if (isGranted(key.check(step.cost, now))) {
          const inFlight = key.permits.reduce((sum, { cost }) => sum + cost, 0);
          const isAlone = inFlight === step.cost;
          expect(inFlight).toBeLessThanOrEqual(isAlone ? max : before);
          expect(key.keyState(now).inFlight).toBe(inFlight);
        }
        const after = key.keyState(now).limit as number;
        expect(Number.isInteger(after)).toBe(true);
        expect(after).toBeGreaterThanOrEqual(1);
        expect(after).toBeLessThanOrEqual(max);
        if (step.act !== 'settle') expect(after).toBe(before); // only a settled call moves it
      }
    });
  });

  test('busy: at most its limit per second; the limit is above 0 and at most `max`', () => {
    always(BUSY, ({ policy, limit, steps, unitMs, startAt }) => {
      const { max = 0 } = (limit as { busy: { max?: number } }).busy;
      const key = new Key(policy, startAt);
      const sent = new Map<number, number>();
      let now = startAt;
      for (const step of steps) {
        now += step.pace * unitMs;
        const second = Math.floor(now / 1_000);
        if (step.act === 'settle') {
          const settled = key.settle(step, now);
          const isBack = step.outcome === 'ignored' && settled;
          if (isBack && Math.floor(settled.permit.dueAt / 1_000) === second) {
            sent.set(second, (sent.get(second) ?? 0) - settled.permit.cost);
          }
        } else if (isGranted(key.check(step.cost, now))) {
          sent.set(second, (sent.get(second) ?? 0) + step.cost);
          expect(sent.get(second)).toBeLessThanOrEqual(
            Math.floor((key.keyState(now).limit ?? 0) + 1e-9),
          );
        }
        expect(key.keyState(now).limit).toBeGreaterThan(0);
        expect(key.keyState(now).limit).toBeLessThanOrEqual(max);
      }
    });
  });
});

/**
 * Only for policies that know the time. Adaptive opens when a call settles. Ramp modes that grow only with calls give the
 * next second as the time to retry.
 */
describe('retryAfterMs', () => {
  over(
    [BUCKET, SPACING, SCHEDULED, BUSY, TWO_BUCKETS, SPACED_BUCKET, SPACED_WINDOW, BUSY_BUCKET],
    'a check fits after retryAfterMs, and not before',
    (policyCase) => {
      always(policyCase, (run) => {
        const key = new Key(run.policy, run.startAt);
        replay(key, run, ({ now, cost, decision }) => {
          if (decision.verdict !== 'deny' || decision.retryAfterMs === NEVER) return;
          expect(Number.isInteger(decision.retryAfterMs)).toBe(true);
          const opensAt = now + decision.retryAfterMs; // rounded up to a whole millisecond
          if (opensAt - 1.125 > now) {
            expect(key.fork().check(cost, opensAt - 1.125).verdict, 'opened early').toBe('deny');
          }
          expect(key.fork().check(cost, opensAt).verdict, 'still closed').not.toBe('deny');
        });
      });
    },
  );

  test('all policies: a cost that never fits is refused at any later time', () => {
    for (const policyCase of POLICY_CASES) {
      if (policyCase === ADAPTIVE) continue; // its state does not change with time
      always({ ...policyCase, tuning: { ...policyCase.tuning, maxCost: 60 } }, (run) => {
        const key = new Key(run.policy, run.startAt);
        replay(key, run, ({ now, cost, decision }) => {
          if (decision.verdict !== 'deny' || decision.retryAfterMs !== NEVER) return;
          for (const later of [1, 1_000, 60_000, 1e9]) {
            expect(key.fork().check(cost, now + later).verdict).toBe('deny');
          }
        });
      });
    }
  });

  test('all policies: exactly the available units can be taken at once', () => {
    for (const policyCase of POLICY_CASES) {
      always(policyCase, (run) => {
        const key = new Key(run.policy, run.startAt);
        replay(key, run, ({ now }) => {
          const available = key.available(now);
          expect(Number.isInteger(available) && available >= 0).toBe(true);
          if (available > 0) expect(key.fork().check(available, now).verdict).toBe('allow');
          expect(key.fork().check(available + 1, now).verdict).not.toBe('allow');
        });
      });
    }
  });
});

describe('returned cost', () => {
  over(
    [BUCKET, TWO_BUCKETS],
    'the cost that was not returned stays within burst plus rate',
    (policyCase) => {
      always(policyCase, ({ policy, limit, steps, unitMs, startAt }) => {
        const parts = ('all' in limit ? limit.all : [limit]) as { bucket: BucketOptions }[];
        const key = new Key(policy, startAt);
        let now = startAt;
        let kept = 0;
        for (const step of steps) {
          now += step.pace * unitMs;
          if (step.act === 'settle') kept -= key.settle(step, now)?.back ?? 0;
          else if (isGranted(key.check(step.cost, now))) kept += step.cost;
          for (const { bucket } of parts) {
            const burst = bucket.burst as number;
            const filled = ((bucket.rate as number) * (now - startAt)) / 1_000;
            expect(kept).toBeLessThanOrEqual(burst + filled + 2e-6 + filled * 1e-9);
            expect(key.available(now)).toBeLessThanOrEqual(burst);
          }
        }
      });
    },
  );

  over(
    [RAMP, BUSY],
    'used plus available is never more than the level or limit of the second',
    (policyCase) => {
      always(policyCase, ({ policy, steps, unitMs, startAt }) => {
        const key = new Key(policy, startAt);
        let now = startAt;
        let second = Number.NaN;
        let out = 0;
        for (const step of steps) {
          now += step.pace * unitMs;
          if (Math.floor(now / 1_000) !== second) out = 0;
          second = Math.floor(now / 1_000);
          if (step.act === 'check' && isGranted(key.check(step.cost, now))) out += step.cost;
          if (step.act === 'settle' && step.outcome !== 'busy') {
            // Three times the cost: a caller that returns more than it took must gain nothing.
            const back = step.cost * 3;
            policy.settle(key.state, 0, { outcome: 'ignored', cost: back, dueAt: now }, now);
            out = Math.max(0, out - back);
          }
          const { pool, limit = 0 } = key.keyState(now);
          expect(out + key.available(now)).toBeLessThanOrEqual(Math.floor((pool ?? limit) + 1e-9));
        }
      });
    },
  );

  test('adaptive: settling more calls than were allowed frees nothing', () => {
    always(ADAPTIVE, ({ policy, steps, unitMs, startAt }) => {
      const key = new Key(policy, startAt);
      let now = startAt;
      for (const step of steps) {
        now += step.pace * unitMs;
        if (step.act === 'check') key.check(step.cost, now);
        else policy.settle(key.state, 0, { outcome: step.outcome, cost: 3, dueAt: now }, now);
        expect(key.available(now)).toBeLessThanOrEqual(key.keyState(now).limit as number);
      }
    });
  });
});

describe('removal and eviction', () => {
  /** The steps before and after a removal. */
  const halves = ({ steps }: Run): [readonly Step[], readonly Step[]] => {
    const middle = Math.floor(steps.length / 2);
    return [steps.slice(0, middle), steps.slice(middle)];
  };

  over(POLICY_CASES, 'removal after removableAt is not observable', (policyCase) => {
    let removed = 0;
    always(policyCase, (run) => {
      const [before, after] = halves(run);
      const key = new Key(run.policy, run.startAt);
      const stopped = replay(key, { ...run, steps: before });
      const removableAt = key.policy.removableAt(key.state, 0);
      if (removableAt === Infinity) return; // never removed
      removed++;
      const later = { ...run, steps: after, startAt: Math.max(stopped, removableAt) };
      const recreated = key.recreate(later.startAt);
      expect(decisionsOf(recreated, later)).toEqual(decisionsOf(key, later));
    });
    // A scheduled ramp grows without calls, and an adaptive limit that has learnt is kept.
    if (policyCase !== SCHEDULED && policyCase !== ADAPTIVE) expect(removed).toBeGreaterThan(20);
  });

  test('adaptive: removal of a key that has learnt nothing is not observable', () => {
    let removed = 0;
    const withoutFeedback: PolicyCase = {
      ...ADAPTIVE,
      tuning: { settles: 8, maxCost: 1, outcomes: ['failed', 'ignored'] },
    };
    always(withoutFeedback, (run) => {
      const key = new Key(run.policy, run.startAt);
      const stopped = replay(key, run);
      while (key.permits.length > 0)
        key.settle({ ...(run.steps[0] as Step), outcome: 'failed' }, stopped);
      if (key.policy.removableAt(key.state, 0) > stopped) return;
      removed++;
      const steps = run.steps.map((step) => ({ ...step, outcome: 'ok' as const }));
      const later = { ...run, steps, startAt: stopped };
      const recreated = key.recreate(stopped);
      // The random source belongs to the policy: only without jitter both keys see the same numbers.
      if ((run.limit as { adaptive: { jitter?: number } }).adaptive.jitter === 0) {
        expect(decisionsOf(recreated, later)).toEqual(decisionsOf(key, later));
      }
    });
    expect(removed).toBeGreaterThan(10);
  });

  /**
   * A key that is evicted while in use may come back, with a state that is fresh only at `evictAt`. It must not get more
   * than if it had been kept: at once, and in total after any number of checks, where the two can be compared. They cannot
   * in adaptive once a call has settled, because only one of them has learnt before. Nor in a ramp beyond the second in
   * which it is fresh: a smaller level is used up sooner, and may grow where a larger one does not.
   */
  over(COMPARABLE, 'eviction never allows more', (policyCase) => {
    let evicted = 0;
    always(policyCase, (run) => {
      const [before, after] = halves(run);
      const key = new Key(run.policy, run.startAt);
      const now = replay(key, { ...run, steps: before });
      const evictAt = key.policy.evictableAt(key.state, 0);
      if (evictAt === Infinity) return;
      evicted++;
      const recreated = key.recreate(now, Math.max(now, evictAt));
      for (const then of [now, Math.max(now, evictAt)]) {
        expect(recreated.available(then)).toBeLessThanOrEqual(key.available(then));
      }
      if (policyCase === ADAPTIVE) return;

      const secondOver = (Math.floor(Math.max(now, evictAt) / 1_000) + 1) * 1_000;
      const horizon = policyCase === RAMP || policyCase === SCHEDULED ? secondOver : Infinity;
      const totals = [key, recreated].map((one) => {
        const sums: number[] = [];
        let sum = 0;
        const steps = checksOf(after).map((step) => ({ ...step, cost: 1 }));
        replay(one, { ...run, steps, startAt: now }, (event) => {
          if (event.now < horizon && isGranted(event.decision)) sum++;
          sums.push(sum);
        });
        return sums;
      });
      const [keptTotals = [], recreatedTotals = []] = totals;
      recreatedTotals.forEach((sum, n) => {
        expect(sum, `after ${n + 1} checks`).toBeLessThanOrEqual(keptTotals[n] as number);
      });
    });
    expect(evicted).toBeGreaterThan(policyCase === ADAPTIVE ? 5 : 100);
  });
});

describe('time and inspection', () => {
  /**
   * Adaptive is left out: it adjusts when a call settles after the next adjustment is due, and a clock that went backwards
   * only delays that, for an increase as for a decrease. Its own tests hold that it never adjusts twice for one instant.
   * Nothing is returned: for a ramp whose clock is in an earlier second a return is late, and late returns are dropped.
   */
  over(
    COMPARABLE.filter((policyCase) => policyCase !== ADAPTIVE),
    'a clock that goes backwards allows no more',
    (policyCase) => {
      const jumps = fc.array(fc.nat(12), { minLength: 120, maxLength: 120 });
      fc.assert(
        fc.property(inputOf(policyCase), jumps, (input, jumps) => {
          const { policy, steps, unitMs, startAt } = createRun(input);
          const [jumping, monotonic] = [new Key(policy, startAt), new Key(policy, startAt)];
          // Checks, and for busy the outcomes that halve its limit.
          const isReplayed = ({ act, outcome }: Step) =>
            act === 'check' || (policyCase === BUSY && act === 'settle' && outcome === 'busy');
          let now = startAt;
          let latest = startAt;
          let [grantedJumping, grantedMonotonic] = [0, 0];
          steps.filter(isReplayed).forEach((step, n) => {
            now += step.pace * unitMs;
            const back = Math.max(0, (jumps[n] ?? 0) - 8) * unitMs; // a third of them jump back
            const jumpedNow = Math.max(startAt, now - back);
            latest = Math.max(latest, jumpedNow); // a clock that stands still instead
            if (step.act === 'check') {
              // Cost 1: a smaller cost may fit where a larger one was refused.
              if (isGranted(jumping.check(1, jumpedNow))) grantedJumping++;
              if (isGranted(monotonic.check(1, latest))) grantedMonotonic++;
              expect(grantedJumping, `${jumpedNow} after ${latest}`).toBeLessThanOrEqual(
                grantedMonotonic,
              );
            } else {
              const settlement = { outcome: 'busy', cost: 1, dueAt: startAt } as const;
              policy.settle(jumping.state, 0, settlement, jumpedNow);
              policy.settle(monotonic.state, 0, settlement, latest);
            }
          });
        }),
        { numRuns: 200 },
      );
    },
  );

  over(POLICY_CASES, 'reading the state changes no later decision', (policyCase) => {
    always(policyCase, (run) => {
      const expected = decisionsOf(new Key(run.policy, run.startAt), run);
      const key = new Key(createPolicy(run.limit, seededRandom(0)), run.startAt);
      if (JSON.stringify(run.limit).includes('"jitter":0.5')) return; // more reads draw other random numbers
      const decisions: string[] = [];
      let now = run.startAt;
      for (const step of run.steps) {
        const then = now + step.pace * run.unitMs;
        for (const readAt of [now, (now + then) / 2, then]) {
          expect(key.check(0, readAt).verdict).toBe('allow');
          key.keyState(readAt);
        }
        now = then;
        if (step.act === 'check') {
          decisions.push(
            `${now} check ${step.cost} → ${formatDecision(key.check(step.cost, now))}`,
          );
        } else if (step.act === 'settle') key.settle(step, now);
        else key.update(step.cost, now);
      }
      expect(decisions).toEqual(expected);
    });
  });

  over(
    POLICY_CASES,
    'ruleStatuses agrees with available, and the key is fresh after freshInMs',
    (policyCase) => {
      always(policyCase, (run) => {
        const key = new Key(run.policy, run.startAt);
        replay(key, run, ({ now }) => {
          const statuses = run.policy.ruleStatuses(key.state.slice(), 0, now);
          expect(Math.min(...statuses.map(({ remaining }) => remaining))).toBe(key.available(now));
          for (const { quota, remaining, opensInMs, freshInMs = 0 } of statuses) {
            expect(remaining).toBeLessThanOrEqual(quota);
            if (remaining > 0) expect(opensInMs).toBe(0);
            expect(freshInMs).toBeGreaterThanOrEqual(0);
          }
          if (![BUCKET, SPACING, WINDOW].includes(policyCase)) return; // others learn, or restart each second
          // Rounding may cost a millisecond: the figure is only reported, no decision depends on it.
          const then = now + (statuses[0]?.freshInMs as number) + 1;
          expect(key.available(then)).toBe(new Key(run.policy, then).available(then));
        });
      });
    },
  );

  test('all policies: keyState and a check of cost 0 report what is available', () => {
    for (const policyCase of POLICY_CASES) {
      always(policyCase, (run) => {
        const key = new Key(run.policy, run.startAt);
        replay(key, run, ({ now }) => {
          const { remaining } = key.keyState(now);
          const available = key.available(now);
          expect(Math.max(0, remaining)).toBe(available);
          expect(key.check(0, now)).toEqual({ verdict: 'allow', remaining: available });
        });
      });
    }
  });
});
