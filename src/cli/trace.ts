import type { Millis } from '../core/clock.ts';
import { ATTEMPT_OUTCOMES, type Decision, OUTCOMES } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import { seededRandom } from '../core/random.ts';
import { internalsOf } from '../limiter/internals.ts';
import { LIMIT_KINDS, limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { formatRetryAfter, roundFloat } from './chart/format.ts';
import {
  type Command,
  EXIT_OK,
  onlyPositional,
  readArgs,
  readJsonFile,
  SWITCH,
  type Terminal,
} from './framework/command.ts';

const help = `usage: sluice trace FILE.json [--json]

Runs timed calls through one limit on virtual time and prints a decision
for each. FILE - is standard input.

  {"limit": {"bucket": {"rate": "10/s", "burst": 3}},
   "calls": [{"at": 0, "check": 2}, {"at": 100, "check": 2}]}

limit   one key, with its options:
        ${LIMIT_KINDS.slice(0, 6).join(', ')},
        ${LIMIT_KINDS.slice(6).join(', ')}
calls   each has "at", in milliseconds and never decreasing, and one of
        check: n                all or nothing; 0 counts nothing
        takeUpTo: n or "all"    up to n
        giveBack: n             returns what was taken and not used
        update: {hits}          hits that were served elsewhere
        update: {poolSize, rank}
                                members that divide a ramp from now on; the
                                rank decides when this one gets the remainder
        settle: {id, outcome, rttMs, used, attempt}
                                settles a call that has an "id"; outcome: ok
                                (default), busy, timeout, failed or ignored;
                                attempt, of a lockout: success or failure

  --json   one line a call: {at, verdict, granted, remaining, waitMs,
           retryAfterMs, level, limit}, as far as they apply; retryAfterMs is
           null if the cost can never fit, 0 if a call must settle first

Exit code 2, and one line that names the field, if the file is invalid.`;

/** The one key of a trace. */
const TRACE_KEY = 'trace';

export const trace: Command = {
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, { json: SWITCH });
    const rows = runTrace(readJsonFile(onlyPositional(positionals, 'FILE.json')));
    if (values.json) for (const { record } of rows) terminal.print(JSON.stringify(record));
    else printTable(rows, terminal);
    return EXIT_OK;
  },
};

/** The result of one call, as `--json` prints it. */
export interface TraceRecord {
  readonly at: Millis;
  readonly verdict?: Decision['verdict'] | 'expired' | undefined;
  readonly granted?: number | undefined;
  readonly remaining: number;
  readonly waitMs?: Millis | undefined;
  /** In JSON, never is null. */
  readonly retryAfterMs?: Millis | undefined;
  readonly level?: number | undefined;
  readonly limit?: number | undefined;
}

/** The fields that an operation adds to its record. */
type CallOutcome = Pick<TraceRecord, 'verdict' | 'granted' | 'waitMs' | 'retryAfterMs'>;

interface TraceRow {
  /** The call as it was written. */
  readonly call: string;
  readonly record: TraceRecord;
}

/** Validates and runs a whole file. @throws {ConfigError} */
function runTrace(file: unknown): TraceRow[] {
  const fields = new OptionReader('', file, 'an object with a limit and calls');
  const calls = fields.get('calls');
  const run = new TraceRun(fields.get('limit'));
  if (!Array.isArray(calls)) return fields.throwFor('calls', 'a list of calls');
  fields.finish();
  return calls.map((call, n) => run.runCall(new OptionReader(`calls[${n}]`, call)));
}

const OPERATIONS = ['check', 'takeUpTo', 'giveBack', 'update', 'settle'] as const;
type Operation = (typeof OPERATIONS)[number];

interface UnsettledCall {
  readonly cost: number;
  readonly dueAt: Millis;
  readonly isAllowed: boolean;
}

class TraceRun {
  #now: Millis = 0;
  readonly #limiter: Limiter;
  readonly #unsettled = new Map<unknown, UnsettledCall>();

  constructor(limit: unknown) {
    const clock = { now: () => this.#now };
    // A fixed seed: the same file always gives the same decisions.
    this.#limiter = limiter({ limit: limit as never, clock, random: seededRandom(1) });
  }

  runCall(fields: OptionReader): TraceRow {
    this.#now = fields.number('at', { min: this.#now });
    const operation = operationOf(fields);
    const call = `${operation} ${formatValue(fields.get(operation))}${formatId(fields)}`;
    const { verdict, granted, waitMs, retryAfterMs } = this[operation](fields);
    fields.finish();
    const { remaining, level, limit } = this.#limiter.inspect(TRACE_KEY);
    const record = {
      at: this.#now,
      verdict,
      granted,
      remaining: roundFloat(remaining),
      waitMs,
      retryAfterMs,
      level: level && roundFloat(level),
      limit: limit && roundFloat(limit),
    };
    return { call, record };
  }

  check(fields: OptionReader): CallOutcome {
    const cost = fields.number('check', { min: 0 });
    return this.#recordDecision(
      fields,
      cost,
      this.#limiter.check(TRACE_KEY, cost, { willSettle: true }),
    );
  }

  takeUpTo(fields: OptionReader): CallOutcome {
    const most = readTakeAmount(fields);
    const granted = this.#limiter.takeUpTo(TRACE_KEY, most);
    if (granted > 0)
      return this.#recordDecision(fields, granted, { verdict: 'allow', remaining: 0 });
    return most === 0 ? { verdict: 'allow', granted } : this.#denyTake(fields);
  }

  /** Nothing could be taken. A check of cost 1 is denied as well, and its decision has the Retry-After. */
  #denyTake(fields: OptionReader): CallOutcome {
    const one = this.#limiter.check(TRACE_KEY, 1, { willSettle: true });
    if (one.verdict !== 'wait') return this.#recordDecision(fields, 0, one);
    // `check` may make a reservation, which takeUpTo does not: it is returned at once.
    this.#limiter.settle(TRACE_KEY, { outcome: 'ignored', dueAt: this.#now + one.waitMs });
    const retryAfterMs = Math.ceil(one.waitMs);
    return this.#recordDecision(fields, 0, { verdict: 'deny', retryAfterMs });
  }

  giveBack(fields: OptionReader): CallOutcome {
    this.#limiter.giveBack(TRACE_KEY, fields.integer('giveBack', 0));
    return {};
  }

  update(fields: OptionReader): CallOutcome {
    const expected = 'an object with hits or poolSize';
    const feedback = new OptionReader(fields.pathOf('update'), fields.get('update'), expected);
    const hits = optionalAmount(feedback, 'hits');
    const size = hits === undefined ? readPoolSize(feedback) : undefined;
    feedback.finish();
    const isApplied = this.#limiter.update(TRACE_KEY, size ?? { hits: hits ?? 0 });
    if (!isApplied)
      fields.throwFor(
        'update',
        `left out: this limit ${size ? 'is not divided' : 'counts no hits'}`,
      );
    return {};
  }

  settle(fields: OptionReader): CallOutcome {
    const settled = new OptionReader(fields.pathOf('settle'), fields.get('settle'));
    const id = settled.get('id');
    const open = this.#unsettled.get(id);
    if (!open) return settled.throwFor('id', 'the id of an earlier call that is not settled yet');
    this.#unsettled.delete(id);

    const rttMs = optionalAmount(settled, 'rttMs');
    const outcome = settled.oneOf('outcome', OUTCOMES, 'ok');
    const used = optionalAmount(settled, 'used');
    const attempt = settled.has('attempt') && settled.oneOf('attempt', ATTEMPT_OUTCOMES);
    settled.finish();
    if (!open.isAllowed) return {}; // it never ran, so there is nothing to settle
    const { expireMs } = internalsOf(this.#limiter);
    const isExpired = this.#now - (rttMs ?? 0) > open.dueAt + expireMs;
    this.#limiter.settle(TRACE_KEY, {
      outcome: isExpired ? 'ignored' : outcome,
      cost: open.cost,
      dueAt: open.dueAt,
      ...(rttMs !== undefined && { rttMs }),
      ...(used !== undefined && { used }),
      ...(attempt && { attempt }),
    });
    return isExpired ? { verdict: 'expired' } : {};
  }

  #recordDecision(fields: OptionReader, cost: number, decision: Decision): CallOutcome {
    const { verdict } = decision;
    const allowed = verdict !== 'deny';
    if (fields.has('id')) {
      const id = fields.get('id');
      const isId = typeof id === 'string' || typeof id === 'number';
      if (!isId || this.#unsettled.has(id))
        fields.throwFor('id', 'a string or number that no unsettled call has');
      const dueAt = this.#now + (verdict === 'wait' ? decision.waitMs : 0);
      this.#unsettled.set(id, { cost, dueAt, isAllowed: allowed });
    }
    if (verdict === 'allow') return { verdict, granted: cost };
    if (verdict === 'wait') return { verdict, granted: cost, waitMs: roundFloat(decision.waitMs) };
    return { verdict, granted: 0, retryAfterMs: decision.retryAfterMs };
  }
}

const optionalAmount = (fields: OptionReader, name: string): number | undefined =>
  fields.has(name) ? fields.number(name, { min: 0 }) : undefined;

function operationOf(fields: OptionReader): Operation {
  const found = OPERATIONS.filter((operation) => fields.names().includes(operation));
  if (found.length === 1) return found[0];
  const got = fields.names().join(', ');
  throw new ConfigError(fields.path, `a call with exactly one of ${OPERATIONS.join(', ')}`, got);
}

function readPoolSize(feedback: OptionReader): { poolSize: number; rank?: number } {
  const poolSize = feedback.integer('poolSize', 1);
  if (!feedback.has('rank')) return { poolSize };
  return { poolSize, rank: feedback.number('rank', { min: 0, max: poolSize - 1, integer: true }) };
}

function readTakeAmount(fields: OptionReader): number {
  const most = fields.get('takeUpTo');
  if (most === 'all') return Infinity;
  if (Number.isInteger(most) && Number(most) >= 0) return Number(most);
  return fields.throwFor('takeUpTo', 'a whole number of at least 0, or "all"');
}

const formatValue = (value: unknown): string =>
  typeof value === 'object' ? JSON.stringify(value) : String(value);

const formatId = (fields: OptionReader): string =>
  fields.names().includes('id') ? ` (${formatValue(fields.get('id'))})` : '';

function printTable(rows: readonly TraceRow[], terminal: Terminal): void {
  const widest = (text: (row: TraceRow) => string, least: number): number =>
    rows.reduce((most, row) => Math.max(most, text(row).length), least);
  const atWidth = widest(({ record }) => String(record.at), 5);
  const callWidth = Math.min(
    40,
    widest(({ call }) => call, 4),
  );
  terminal.print(`${'at ms'.padStart(atWidth)}  ${'call'.padEnd(callWidth)}  decision`);
  for (const { call, record } of rows) {
    const at = String(record.at).padStart(atWidth);
    terminal.print(`${at}  ${call.padEnd(callWidth)}  ${formatResult(record)}`.trimEnd());
  }
}

function formatResult(line: TraceRecord): string {
  const { verdict, granted, remaining, waitMs, retryAfterMs, level, limit } = line;
  return [
    verdict && (verdict === 'allow' ? `allow ${granted}` : verdict),
    waitMs !== undefined && `in ${waitMs} ms`,
    retryAfterMs !== undefined && formatRetryAfter(retryAfterMs, 'retry in'),
    `${remaining} left`,
    level !== undefined && `level ${level}`,
    limit !== undefined && `limit ${limit}`,
  ]
    .filter(Boolean)
    .join(' · ');
}
