/**
 * Stories: what happened to one key, as a table that is read from the top down.
 *
 *     [100, 'check 9', 'allow, 1 left'],          the clock stands on the left,
 *     [5_000, 'update 8'],                        what happened in the middle,
 *     [5_200, 'check 1', 'deny, retry in 3900'],  what was answered on the right
 *
 * | event                      | what it does                                      | its answer          |
 * | -------------------------- | ------------------------------------------------- | ------------------- |
 * | check 2                    | asks for 2; 0 looks                               | allow, 1 left       |
 * |                            |                                                   | wait 6000           |
 * |                            |                                                   | deny, retry in 412  |
 * |                            |                                                   | deny, never         |
 * |                            |                                                   | deny, when settled  |
 * | takeUpTo 5 · takeUpTo all  | takes up to so many                               | got 3               |
 * | giveBack 2 · … 2 due 100   | hands back 2 that were good now, or then          |                     |
 * | update 8                   | another node served 8                             | heard · of no use   |
 * | pool 3 · pool 3 rank 1     | 3 share the limit; this is the second of them     | heard · of no use   |
 * | resume 60 from 100         | a pool of 60 had been reached at 100              | heard · of no use   |
 * | done ok 250                | a call is over, after 250 ms                      |                     |
 * | done ok cost 2 used 5      | … of cost 2 that really used 5                    |                     |
 * | done ignored due 6000      | … whose permit was good at 6000                   |                     |
 * | look                       | looks; the answer names what it is about          | remaining 3, pool 7 |
 *
 * A row without an answer only happens. A story of several nodes names them: 'A: check 1'.
 *
 * Every story is told over every entry of `IMPLEMENTATIONS`, and must be answered alike by all. A
 * rule that is written a second time (in Lua, say) gets an entry there and all stories with it.
 */

import { describe, expect, test } from 'vitest';
import type { Millis } from '../../src/core/clock.ts';
import { type Decision, NEVER, type Outcome, WHEN_SETTLED } from '../../src/core/decision.ts';
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

/** One key of one limit, whoever keeps its numbers. */
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

/** Makes a test of each story, over each implementation. */
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

/** One line a row, so that a failing story is a difference a person can read. */
const formatRows = (rows: readonly ScenarioRow[]): string[] =>
  rows.map(([at, event, answer]) => `${at} ${event}${answer === undefined ? '' : ` → ${answer}`}`);

/** Tells a story to the end and returns its rows as they were really answered. */
async function runScenario(
  createSubject: CreateSubject,
  { limit, startAt, nodes = [''], rows }: Scenario,
): Promise<ScenarioRow[]> {
  const subjects = new Map<string, KeyUnderTest>();
  for (const node of nodes)
    subjects.set(node, await createSubject(limit, startAt ?? rows[0]?.[0] ?? 0));

  const told: ScenarioRow[] = [];
  for (const [at, event, expected] of rows) {
    const [, node = '', what = ''] = /^(?:(\w+): )?(.*)$/.exec(event) ?? [];
    const subject = subjects.get(node);
    if (!subject) throw new Error(`nobody is called "${node}" in: ${event}`);
    const answer = await perform(subject, what, at, expected ?? '');
    told.push(expected === undefined ? [at, event] : [at, event, answer ?? 'nothing']);
  }
  return told;
}

async function perform(subject: KeyUnderTest, what: string, now: Millis, expected: string) {
  const [verb = '', ...words] = what.split(' ');
  const said = parseArgs(words);
  const dueAt = said.due ?? now;
  switch (verb) {
    case 'check':
      return formatDecision(await subject.check(said.amount, now));
    case 'takeUpTo':
      return `got ${formatNumber(await subject.takeUpTo(said.amount, now))}`;
    case 'giveBack':
      return void (await subject.settle({ outcome: 'ignored', cost: said.amount, dueAt }, now));
    case 'done':
      return void (await subject.settle(settlementOf(words, now), now));
    case 'update':
      return formatUpdateResult(await subject.update({ hits: said.amount }, now));
    case 'pool': {
      const rank = said.rank === undefined ? {} : { rank: said.rank };
      return formatUpdateResult(await subject.update({ poolSize: said.amount, ...rank }, now));
    }
    case 'resume': {
      const feedback = { resume: said.amount, reachedAt: said.from ?? now };
      return formatUpdateResult(await subject.update(feedback, now));
    }
    case 'look':
      return formatKeyState(await subject.keyState(now), expected);
    default:
      throw new Error(`a story knows no event "${what}"`);
  }
}

/** 'all' and plain numbers are the amount; every other word names the number behind it. */
function parseArgs(words: readonly string[]): { amount: number; [name: string]: number } {
  const said: { amount: number; [name: string]: number } = { amount: 1 };
  for (let n = 0; n < words.length; n++) {
    const word = words[n] as string;
    if (word === 'all') said.amount = Infinity;
    else if (!Number.isNaN(Number(word))) said.amount = Number(word);
    else said[word] = Number(words[++n]);
  }
  return said;
}

function settlementOf([outcome, ...words]: readonly string[], now: Millis): Settlement {
  const bare =
    words.length > 0 && !Number.isNaN(Number(words[0])) ? { rttMs: Number(words[0]) } : {};
  const { cost = 1, used, due = now } = parseArgs(words);
  const extra = used === undefined ? bare : { ...bare, used };
  return { outcome: outcome as Outcome, cost, dueAt: due, ...extra };
}

/** A number as a person would write it: to the microsecond or the millionth, and no minus zero. */
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

const formatUpdateResult = (heard: boolean): string => (heard ? 'heard' : 'of no use');

const STATE_LABELS: readonly (readonly [Exclude<keyof KeyState, 'partitions'>, string])[] = [
  ['remaining', 'remaining'],
  ['pool', 'pool'],
  ['limit', 'limit'],
  ['inFlight', 'in flight'],
  ['reserved', 'reserved'],
  ['rttMs', 'rtt'],
];

/** What was seen, of what the story is about. */
function formatKeyState(view: KeyState, expected: string): string {
  return STATE_LABELS.filter(([, word]) => expected.includes(word))
    .map(
      ([field, word]) =>
        `${word} ${view[field] === undefined ? 'none' : formatNumber(view[field])}`,
    )
    .join(', ');
}

/** What stands before and behind a key's numbers belongs to its neighbours. */
const GUARD_VALUE = -77;

/** A key in the middle of an array, between two neighbours as wide as it is, which nobody may touch. */
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
