/**
 * Scenarios: events on one key and their results, as a table.
 *
 *     [100, 'check 9', 'allow, 1 left'],          time, event, result
 *     [5_000, 'update 8'],
 *     [5_200, 'check 1', 'deny, retry in 3900'],
 *
 * | event                      | what it does                                      | its result          |
 * | -------------------------- | ------------------------------------------------- | ------------------- |
 * | check 2                    | checks a cost of 2; 0 changes nothing             | allow, 1 left       |
 * |                            |                                                   | wait 6000           |
 * |                            |                                                   | deny, retry in 412  |
 * |                            |                                                   | deny, never         |
 * |                            |                                                   | deny, when settled  |
 * | takeUpTo 5 · takeUpTo all  | takes up to so many                               | got 3               |
 * | giveBack 2 · … 2 due 100   | gives back 2 whose permit was valid now, or then  |                     |
 * | update 8                   | 8 hits on another node                            | applied · ignored   |
 * | pool 3 · pool 3 rank 1     | a pool of 3; this member has rank 1               | applied · ignored   |
 * | resume 60 from 100         | a ramp level of 60 was reached at 100             | applied · ignored   |
 * | done ok 250                | a call settles after 250 ms                       |                     |
 * | done ok cost 2 used 5      | … of cost 2 that really used 5                    |                     |
 * | done ignored due 6000      | … whose permit was valid at 6000                  |                     |
 * | report failure · … success | an attempt ended so                                | applied · ignored   |
 * | peek                       | reads the fields that the expected result names   | level 7             |
 *
 * A row without a result is not compared. A scenario of several nodes names them: 'A: check 1'.
 *
 * Every scenario runs over every entry of `IMPLEMENTATIONS`. A policy that is written a second time (in
 * Lua, say) gets an entry there, and all scenarios with it.
 */

import { describe, expect, test } from 'vitest';
import type { Millis } from '../../src/core/clock.ts';
import {
  type AttemptOutcome,
  type Decision,
  NEVER,
  type Outcome,
  WHEN_SETTLED,
} from '../../src/core/decision.ts';
import { seededRandom } from '../../src/core/random.ts';
import { createPolicy, type Limit } from '../../src/policies/limit.ts';
import {
  type Feedback,
  type KeyState,
  type Policy,
  type Settlement,
  type State,
  takeUpTo,
} from '../../src/policies/policy.ts';

export type ScenarioRow = readonly [atMs: Millis, event: string, answer?: string];

export interface Scenario {
  readonly limit: Limit;
  /** When the keys begin. Default: at the first row. */
  readonly startAt?: Millis;
  /** The names of the nodes, if there is more than one. */
  readonly nodes?: readonly string[];
  readonly rows: readonly ScenarioRow[];
}

type Awaitable<T> = T | Promise<T>;

/** One key of one limit, in any implementation. */
export interface KeyUnderTest {
  check(cost: number, now: Millis): Awaitable<Decision>;
  takeUpTo(most: number, now: Millis): Awaitable<number>;
  settle(settlement: Settlement, now: Millis): Awaitable<void>;
  update(feedback: Feedback, now: Millis): Awaitable<boolean>;
  keyState(now: Millis): Awaitable<KeyState>;
}

type CreateSubject = (limit: Limit, startAt: Millis) => Awaitable<KeyUnderTest>;

const IMPLEMENTATIONS: Readonly<Record<string, CreateSubject>> = {
  'a typed array': (limit, startAt) => arraySubject(createPolicy(limit, seededRandom(1)), startAt),
};

/** Defines a test for each scenario, over each implementation. */
export function runScenarios(scenarios: Readonly<Record<string, Scenario>>): void {
  for (const [place, createSubject] of Object.entries(IMPLEMENTATIONS)) {
    describe(`on ${place}`, () => {
      for (const [name, scenario] of Object.entries(scenarios)) {
        test(name, async () =>
          expect(formatRows(await runScenario(createSubject, scenario))).toEqual(
            formatRows(scenario.rows),
          ),
        );
      }
    });
  }
}

/** One line per row, so that a failure shows as a readable difference. */
const formatRows = (rows: readonly ScenarioRow[]): string[] =>
  rows.map(([at, event, answer]) => `${at} ${event}${answer === undefined ? '' : ` → ${answer}`}`);

/** Runs a scenario and returns its rows with the actual results. */
async function runScenario(
  createSubject: CreateSubject,
  { limit, startAt, nodes = [''], rows }: Scenario,
): Promise<ScenarioRow[]> {
  const subjects = new Map<string, KeyUnderTest>();
  for (const node of nodes)
    subjects.set(node, await createSubject(limit, startAt ?? rows[0]?.[0] ?? 0));

  const actual: ScenarioRow[] = [];
  for (const [at, event, expected] of rows) {
    const [, node = '', what = ''] = /^(?:(\w+): )?(.*)$/.exec(event) ?? [];
    const subject = subjects.get(node);
    if (!subject) throw new Error(`unknown node "${node}" in: ${event}`);
    const answer = await perform(subject, what, at, expected ?? '');
    actual.push(expected === undefined ? [at, event] : [at, event, answer ?? 'nothing']);
  }
  return actual;
}

async function perform(subject: KeyUnderTest, what: string, now: Millis, expected: string) {
  const [verb = '', ...words] = what.split(' ');
  const args = parseArgs(words);
  const dueAt = args.due ?? now;
  switch (verb) {
    case 'check':
      return formatDecision(await subject.check(args.amount, now));
    case 'takeUpTo':
      return `got ${formatNumber(await subject.takeUpTo(args.amount, now))}`;
    case 'giveBack':
      return void (await subject.settle({ outcome: 'ignored', cost: args.amount, dueAt }, now));
    case 'done':
      return void (await subject.settle(settlementOf(words, now), now));
    case 'update':
      return formatUpdateResult(await subject.update({ hits: args.amount }, now));
    case 'pool': {
      const rank = args.rank === undefined ? {} : { rank: args.rank };
      return formatUpdateResult(await subject.update({ poolSize: args.amount, ...rank }, now));
    }
    case 'report': {
      const report = words[0] as AttemptOutcome;
      return formatUpdateResult(await subject.update({ report }, now));
    }
    case 'resume': {
      const feedback = { resume: args.amount, reachedAt: args.from ?? now };
      return formatUpdateResult(await subject.update(feedback, now));
    }
    case 'peek':
      return formatKeyState(await subject.keyState(now), expected);
    default:
      throw new Error(`unknown event "${what}"`);
  }
}

/** 'all' and plain numbers are the amount; every other word names the number that follows. */
function parseArgs(words: readonly string[]): { amount: number; [name: string]: number } {
  const args: { amount: number; [name: string]: number } = { amount: 1 };
  for (let n = 0; n < words.length; n++) {
    const word = words[n] as string;
    if (word === 'all') args.amount = Infinity;
    else if (!Number.isNaN(Number(word))) args.amount = Number(word);
    else args[word] = Number(words[++n]);
  }
  return args;
}

function settlementOf([outcome, ...words]: readonly string[], now: Millis): Settlement {
  const bare =
    words.length > 0 && !Number.isNaN(Number(words[0])) ? { rttMs: Number(words[0]) } : {};
  const { cost = 1, used, due = now } = parseArgs(words);
  const extra = used === undefined ? bare : { ...bare, used };
  return { outcome: outcome as Outcome, cost, dueAt: due, ...extra };
}

/** A number rounded to a millionth, without minus zero. */
const formatNumber = (value: number): string => String(Math.round(value * 1e6) / 1e6 + 0);

export function formatDecision(decision: Decision): string {
  switch (decision.verdict) {
    case 'allow':
      return `allow, ${formatNumber(decision.remaining)} left`;
    case 'wait':
      return `wait ${formatNumber(decision.waitMs)}`;
    case 'deny':
      if (decision.retryAfterMs === NEVER) return 'deny, never';
      if (decision.retryAfterMs === WHEN_SETTLED) return 'deny, when settled';
      return `deny, retry in ${formatNumber(decision.retryAfterMs)}`;
  }
}

const formatUpdateResult = (isApplied: boolean): string => (isApplied ? 'applied' : 'ignored');

const STATE_LABELS: readonly (readonly [
  Exclude<keyof KeyState, 'partitions' | 'priorities' | 'backPressure'>,
  string,
])[] = [
  ['remaining', 'remaining'],
  ['level', 'level'],
  ['limit', 'limit'],
  ['inFlight', 'in flight'],
  ['reserved', 'reserved'],
  ['rttMs', 'rtt'],
  ['failures', 'failures'],
  ['locks', 'locks'],
  ['lockedMs', 'locked for'],
];

/** The fields that the expected result names. */
function formatKeyState(view: KeyState, expected: string): string {
  return STATE_LABELS.filter(([, word]) => expected.includes(word))
    .map(
      ([field, word]) =>
        `${word} ${view[field] === undefined ? 'none' : formatNumber(Number(view[field]))}`,
    )
    .join(', ');
}

/** Fills the neighbours of a key, to detect writes outside its numbers. */
const GUARD_VALUE = -77;

/** A key in the middle of an array, between two guarded neighbours of the same width. */
function arraySubject(
  policy: Policy,
  startAt: Millis,
  freshAt?: Millis,
): KeyUnderTest & { state: State } {
  const { kind, width } = policy;
  const state = new Float64Array(3 * width).fill(GUARD_VALUE);
  const i = width;

  const guarded = <T>(result: T): T => {
    for (let n = 0; n < width; n++) {
      if (state[n] === GUARD_VALUE && state[i + width + n] === GUARD_VALUE) continue;
      throw new Error(`${kind} wrote outside its ${width} numbers: ${state.join(' ')}`);
    }
    return result;
  };

  guarded(policy.init(state, i, startAt, freshAt));
  return {
    state,
    check: (cost, now) => guarded(policy.check(state, i, cost, now)),
    takeUpTo: (most, now) => guarded(takeUpTo(policy, state, i, most, now)),
    settle: (settlement, now) => guarded(policy.settle(state, i, settlement, now)),
    update: (feedback, now) => guarded(policy.update(state, i, feedback, now)),
    keyState: (now) => guarded(policy.keyState(state, i, now)),
  };
}
