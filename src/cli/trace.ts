/**
 * `sluice trace FILE`: one limit, timed calls, a decision for each.
 *
 * The way to check a limit before trusting it: the calls are written down with their times, and run
 * through the very same engine on a clock that says what the file says.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, NEVER, OUTCOMES, WHEN_SETTLED } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { Fields } from '../core/options.ts';
import { seededRandom } from '../core/random.ts';
import { LIMIT_KINDS, limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/sync-limiter.ts';
import {
  type Command,
  EXIT_OK,
  readArgs,
  readJson,
  type Terminal,
  UsageError,
} from './framework/command.ts';

const help = `usage: sluice trace FILE.json [--json]

Runs one limit over timed calls on virtual time and prints a decision for
each. FILE - is standard input.

  {"limit": {"bucket": {"rate": "10/s", "burst": 3}},
   "calls": [{"at": 0, "ask": 2}, {"at": 0, "ask": 2}, {"at": 100, "ask": 2}]}

limit   one key, with its options:
        ${LIMIT_KINDS.join(', ')}
calls   each has "at", in milliseconds and never decreasing, and one of
        ask: n                  all or nothing; 0 only looks
        take: n or "all"        up to n
        give: n                 gives back what was taken and not used
        hear: {hits}            were served elsewhere
        hear: {poolSize, rank}  so many share a ramp from now on; with a rank
                                this one has its turn at the remainder
        settle: {id, outcome, rttMs, used}
                                ends a call that had an "id"; outcome is ok
                                (default), busy, timeout, failed or ignored

  --json   one line a call: {at, verdict, granted, remaining, waitMs,
           retryAfterMs, pool, limit}, as far as they apply; retryAfterMs is
           null if it can never fit, 0 if a call must settle first

Exit code 2, and one line that names the field, if the file makes no sense.`;

/** The trace has one key; what it is called does not matter. */
const KEY = 'trace';

export const trace: Command = {
  name: 'trace',
  summary: 'runs one limit over timed calls and prints every decision',
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, { json: { type: 'boolean' } });
    const [file, ...others] = positionals;
    if (file === undefined || others.length > 0)
      throw new UsageError('expected one FILE.json; see --help');
    const rows = runTrace(readJson(file));
    if (values.json) for (const { line } of rows) terminal.print(JSON.stringify(line));
    else printTable(rows, terminal);
    return EXIT_OK;
  },
};

/** What one call yields, for a machine. */
export interface TraceLine {
  readonly at: Millis;
  readonly verdict?: Decision['verdict'] | 'expired';
  readonly granted?: number;
  readonly remaining?: number;
  readonly waitMs?: Millis;
  /** As JSON has it: never is null. */
  readonly retryAfterMs?: Millis;
  readonly pool?: number;
  readonly limit?: number;
}

interface Row {
  /** The call as it was written, for a person. */
  readonly call: string;
  readonly line: TraceLine;
}

/** Checks and runs a whole file. @throws {ConfigError} naming the field that is wrong. */
function runTrace(file: unknown): Row[] {
  const fields = new Fields('', file, 'an object with a limit and calls');
  const calls = fields.raw('calls');
  const run = new TraceRun(fields.raw('limit'));
  if (!Array.isArray(calls)) return fields.fail('calls', 'a list of calls');
  fields.done();
  return calls.map((call, n) => run.call(new Fields(`calls[${n}]`, call)));
}

/** Those of a limiter. */
const VERBS = ['ask', 'take', 'give', 'hear', 'settle'] as const;
type Verb = (typeof VERBS)[number];

interface OpenCall {
  readonly cost: number;
  readonly dueAt: Millis;
  readonly allowed: boolean;
}

class TraceRun {
  #now: Millis = 0;
  readonly #limiter: Limiter;
  readonly #open = new Map<unknown, OpenCall>();

  constructor(limit: unknown) {
    const clock = { now: () => this.#now };
    // A fixed seed: the same file always gives the same answers.
    this.#limiter = limiter({ limit: limit as never, clock, random: seededRandom(1) });
  }

  call(fields: Fields): Row {
    this.#now = fields.number('at', { min: this.#now });
    const verb = verbOf(fields);
    const call = `${verb} ${wordsOf(fields.raw(verb))}${idOf(fields)}`;
    const verdict = this[verb](fields);
    fields.done();
    return { call, line: inOrder({ at: this.#now, ...verdict, ...this.#look() }) };
  }

  ask(fields: Fields): Partial<TraceLine> {
    const cost = fields.number('ask', { min: 0 });
    return this.#allowed(fields, cost, this.#limiter.ask(KEY, cost));
  }

  take(fields: Fields): Partial<TraceLine> {
    const most = fields.raw('take');
    const granted = this.#limiter.take(KEY, most === 'all' ? Infinity : wholeOrAll(fields));
    if (granted > 0) return this.#allowed(fields, granted, { verdict: 'allow', remaining: 0 });
    return most === 0 ? { verdict: 'allow', granted } : this.#refused(fields);
  }

  /** There was nothing to take. A single one would be refused too, and that says for how long. */
  #refused(fields: Fields): Partial<TraceLine> {
    const one = this.#limiter.ask(KEY, 1);
    if (one.verdict !== 'wait') return this.#allowed(fields, 0, one);
    // Only asking may reserve, so the place goes back at once.
    this.#limiter.settle(KEY, { outcome: 'ignored', dueAt: this.#now + one.waitMs });
    const retryAfterMs = Math.ceil(one.waitMs);
    return this.#allowed(fields, 0, { verdict: 'deny', retryAfterMs });
  }

  give(fields: Fields): Partial<TraceLine> {
    this.#limiter.give(KEY, fields.whole('give', 0));
    return {};
  }

  hear(fields: Fields): Partial<TraceLine> {
    const news = new Fields(
      fields.at('hear'),
      fields.raw('hear'),
      'an object with hits or poolSize',
    );
    const hits = news.has('hits') ? news.number('hits', { min: 0 }) : undefined;
    const size = hits === undefined ? poolSizeOf(news) : undefined;
    news.done();
    const isHeard = this.#limiter.hear(KEY, size ?? { hits: hits ?? 0 });
    if (!isHeard)
      fields.fail('hear', `left out: this limit ${size ? 'is not divided' : 'counts no hits'}`);
    return {};
  }

  settle(fields: Fields): Partial<TraceLine> {
    const settled = new Fields(fields.at('settle'), fields.raw('settle'));
    const id = settled.raw('id');
    const open = this.#open.get(id);
    if (!open) return settled.fail('id', 'the id of an earlier call that is not settled yet');
    this.#open.delete(id);

    const rttMs = settled.has('rttMs') ? settled.number('rttMs', { min: 0 }) : undefined;
    const outcome = settled.oneOf('outcome', OUTCOMES, 'ok');
    const used = settled.has('used') ? settled.number('used', { min: 0 }) : undefined;
    settled.done();
    if (!open.allowed) return {}; // it never ran, so there is nothing to settle
    const isExpired = this.#limiter.isExpired(open.dueAt, this.#now - (rttMs ?? 0));
    this.#limiter.settle(KEY, {
      outcome: isExpired ? 'ignored' : outcome,
      cost: open.cost,
      dueAt: open.dueAt,
      ...(rttMs !== undefined && { rttMs }),
      ...(used !== undefined && { used }),
    });
    return isExpired ? { verdict: 'expired' } : {};
  }

  #allowed(fields: Fields, cost: number, decision: Decision): Partial<TraceLine> {
    const { verdict } = decision;
    const allowed = verdict !== 'deny';
    if (fields.has('id')) {
      const id = fields.raw('id');
      const isId = typeof id === 'string' || typeof id === 'number';
      if (!isId || this.#open.has(id)) fields.fail('id', 'a text or number that no open call has');
      const dueAt = this.#now + (verdict === 'wait' ? decision.waitMs : 0);
      this.#open.set(id, { cost, dueAt, allowed });
    }
    if (verdict === 'allow') return { verdict, granted: cost };
    if (verdict === 'wait') return { verdict, granted: cost, waitMs: tidy(decision.waitMs) };
    return { verdict, granted: 0, retryAfterMs: decision.retryAfterMs };
  }

  #look(): Partial<TraceLine> {
    const { remaining, pool, limit } = this.#limiter.inspect(KEY);
    return {
      remaining: tidy(remaining),
      ...(pool !== undefined && { pool: tidy(pool) }),
      ...(limit !== undefined && { limit: tidy(limit) }),
    };
  }
}

/** Every line names its figures in the same order, and only those that apply. */
function inOrder(line: TraceLine): TraceLine {
  const { at, verdict, granted, remaining, waitMs, retryAfterMs, pool, limit } = line;
  return { at, verdict, granted, remaining, waitMs, retryAfterMs, pool, limit } as TraceLine;
}

function verbOf(fields: Fields): Verb {
  const verbs = VERBS.filter((verb) => fields.names().includes(verb));
  if (verbs.length === 1) return verbs[0];
  const got = fields.names().join(', ');
  throw new ConfigError(fields.path, `a call with exactly one of ${VERBS.join(', ')}`, got);
}

/** How many share the limit, in the words of `News`. */
function poolSizeOf(news: Fields): { poolSize: number; rank?: number } {
  const poolSize = news.whole('poolSize', 1);
  if (!news.has('rank')) return { poolSize };
  return { poolSize, rank: news.number('rank', { min: 0, max: poolSize - 1, whole: true }) };
}

function wholeOrAll(fields: Fields): number {
  const most = fields.raw('take');
  const isWhole = Number.isInteger(most) && (most as number) >= 0;
  return isWhole ? (most as number) : fields.fail('take', 'a whole number of at least 0, or "all"');
}

const wordsOf = (value: unknown): string =>
  typeof value === 'object' ? JSON.stringify(value) : String(value);

const idOf = (fields: Fields): string =>
  fields.names().includes('id') ? ` (${wordsOf(fields.raw('id'))})` : '';

/** Without the dust that sums of fractions gather. */
const tidy = (value: number): number =>
  Number.isInteger(value) ? value : Number(value.toPrecision(12));

function printTable(rows: readonly Row[], terminal: Terminal): void {
  const atWidth = longest(rows, ({ line }) => String(line.at), 5);
  const callWidth = Math.min(
    40,
    longest(rows, ({ call }) => call, 4),
  );
  terminal.print(`${'at ms'.padStart(atWidth)}  ${'call'.padEnd(callWidth)}  answer`);
  for (const { call, line } of rows) {
    const at = String(line.at).padStart(atWidth);
    terminal.print(`${at}  ${call.padEnd(callWidth)}  ${answerOf(line)}`.trimEnd());
  }
}

const longest = (rows: readonly Row[], text: (row: Row) => string, least: number): number =>
  rows.reduce((most, row) => Math.max(most, text(row).length), least);

function answerOf(line: TraceLine): string {
  const { verdict, granted, remaining, waitMs, retryAfterMs, pool, limit } = line;
  return [
    verdict && (verdict === 'allow' ? `allow ${granted}` : verdict),
    waitMs !== undefined && `in ${waitMs} ms`,
    verdict === 'deny' && retryText(retryAfterMs),
    remaining !== undefined && `${remaining} left`,
    pool !== undefined && `pool ${pool}`,
    limit !== undefined && `limit ${limit}`,
  ]
    .filter(Boolean)
    .join(' · ');
}

function retryText(retryAfterMs: TraceLine['retryAfterMs']): string {
  if (retryAfterMs === WHEN_SETTLED) return 'until a call settles';
  return retryAfterMs === NEVER ? 'it can never fit' : `retry in ${retryAfterMs} ms`;
}
