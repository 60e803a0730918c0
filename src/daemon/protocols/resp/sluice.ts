/**
 * The daemon's own limits over RESP.
 *
 *     SLUICE.ASK per-client ip:10.0.0.1           one limit by name; * is whichever are for the key
 *     ──▶  1     allowed (0: refused)
 *          19    remaining; -1 if that is unknown or without end
 *          0     milliseconds until it is worth asking again; -1 never; 0 if it was allowed, or if
 *                some call in flight must settle first
 *          ""    the limit that refused
 *          ""    with HOLD, what to settle with
 *          ""    why, where it is not just a limit that is used up
 */

import { NEVER, OUTCOMES, type Outcome } from '../../../core/decision.ts';
import type { Inspection, NamedStanding } from '../../../limiter/inspection.ts';
import { textOf } from '../../keys/binary-key.ts';
import { type Answer, type Ask, isUnknown, type OutOfReach } from '../../router/router.ts';
import type { Settled as ListSettled } from '../../router/routes.ts';
import {
  type Arguments,
  type Call,
  type Command,
  type Fill,
  NOT_A_NUMBER,
  SYNTAX,
} from './command.ts';
import type { Reply, Value } from './reply.ts';

/** In the place of a limit's name: whichever are for the key. */
const ANY = '*';

const HOLD = Buffer.from('hold');

const noSuchLimit = (name: string): string => `ERR no limit is named '${name.slice(0, 64)}'`;

/** Reads what is asked; a text is what is wrong with it. */
function readAsk(args: Arguments): Ask | string {
  const limit = args.text(1);
  const isHold = args.count > 3 && args.is(args.count - 1, HOLD);
  const rest = args.count - (isHold ? 1 : 0);
  if (rest > 4) return SYNTAX;
  const cost = rest === 4 ? args.amount(3) : 1;
  if (Number.isNaN(cost)) return NOT_A_NUMBER;
  return { limit: limit === ANY ? undefined : limit, tag: args.text(2), cost, hold: isHold };
}

function ask({ args, reply, served }: Call): undefined | Promise<Fill> {
  const wanted = readAsk(args);
  if (typeof wanted === 'string') return reply.error(wanted);
  const answer = served.gate.ask(wanted);
  if (answer instanceof Promise) return answer.then((own) => (later) => tell(later, own));
  return isUnknown(answer) ? reply.error(noSuchLimit(answer.unknown)) : tell(reply, answer);
}

function tell(reply: Reply, { decision, limit = '', permit = '', ...why }: Answer): undefined {
  const isAllowed = decision.verdict === 'allow';
  reply.array(6);
  reply.integer(isAllowed ? 1 : 0);
  reply.integer(isAllowed ? known(decision.remaining) : 0);
  reply.integer(decision.verdict === 'deny' ? wholeMs(decision.retryAfterMs) : 0);
  reply.bulk(limit);
  reply.bulk(permit);
  return reply.bulk(why.settled?.reason ?? why.reason ?? '');
}

const known = (remaining: number): number =>
  remaining < Number.MAX_SAFE_INTEGER ? Math.max(0, Math.floor(remaining)) : -1;

const wholeMs = (ms: number): number => (ms === NEVER ? -1 : Math.ceil(ms));

type Result = NonNullable<Parameters<Call['served']['gate']['settle']>[1]>;

/** What may be said besides the outcome. */
const NOTES: Readonly<Record<string, 'used' | 'rttMs' | 'retryAfterMs'>> = {
  used: 'used',
  rtt: 'rttMs',
  retryafter: 'retryAfterMs',
};

/** Reads how a call went; a text is what is wrong with it. */
function readResult(args: Arguments): Result | string {
  const outcome = args.count > 2 ? args.word(2) : 'ok';
  if (!OUTCOMES.includes(outcome as Outcome)) return `ERR outcome must be ${OUTCOMES.join(', ')}`;
  const result: Record<string, number | string> = { outcome };
  for (let n = 3; n < args.count; n += 2) {
    const note = Object.hasOwn(NOTES, args.word(n)) && NOTES[args.word(n)];
    if (!note || n + 1 === args.count) return SYNTAX;
    const amount = args.amount(n + 1);
    if (Number.isNaN(amount)) return NOT_A_NUMBER;
    result[note] = amount;
  }
  return result;
}

function settle({ args, reply, served }: Call): undefined {
  const result = readResult(args);
  if (typeof result === 'string') return reply.error(result);
  return reply.integer(served.gate.settle(args.text(1), result) ? 1 : 0);
}

async function inspect({ args, served }: Call): Promise<Fill> {
  const { gate } = served;
  const tag = args.text(1);
  const name = args.count > 2 && args.text(2) !== ANY ? args.text(2) : undefined;
  const settled = gate.route(tag, name)?.settled;
  const seen = await gate.inspect(tag, name);
  if (!seen) return (reply) => reply.error(noSuchLimit(name ?? ''));
  return (reply) =>
    reply.value({ key: textOf(tag), ...(settled && listed(settled)), limits: seen.map(shown) });
}

const listed = ({
  isAllowed,
  reason,
  limit,
  by,
}: ListSettled): Record<string, Value | undefined> => ({
  verdict: isAllowed ? 'allow' : 'deny',
  reason,
  limit,
  by: by?.text,
});

function shown(own: Inspection | OutOfReach): Value {
  if (!('rules' in own)) return { ...own };
  const { name, remaining, opensInMs, by, rules, ...view } = own;
  return { name, remaining, opensInMs: inMs(opensInMs), by, ...view, rules: rules.map(shownRule) };
}

const shownRule = (rule: NamedStanding): Value => ({
  name: rule.name,
  kind: rule.kind,
  quota: rule.quota,
  windowMs: rule.windowMs,
  remaining: rule.remaining,
  opensInMs: inMs(rule.opensInMs),
  freshInMs: inMs(rule.freshInMs),
});

const inMs = (ms: number | undefined): number | undefined =>
  ms === undefined ? undefined : wholeMs(ms);

export const sluiceCommands: readonly Command[] = [
  {
    name: 'sluice.ask',
    arity: -3,
    key: 2,
    summary: 'Asks a limit of the daemon, or whichever are for the key',
    usage: 'limit key [cost] [HOLD]',
    run: ask,
  },
  {
    name: 'sluice.settle',
    arity: -2,
    summary: 'Says how a call went that was asked for with HOLD',
    usage: 'permit [outcome] [USED amount] [RTT ms] [RETRYAFTER ms]',
    run: settle,
  },
  {
    name: 'sluice.inspect',
    arity: -2,
    key: 1,
    summary: 'How a key stands: what is left, which rule says no, until when',
    usage: 'key [limit]',
    run: inspect,
  },
];
