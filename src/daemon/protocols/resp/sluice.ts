/**
 *     SLUICE.CHECK per-client ip:10.0.0.1           one limit by name; * means all that match the key
 *     ──▶  1     allowed (0: denied)
 *          19    remaining; -1 if unknown or unbounded
 *          0     retry after, in ms; -1 never; 0 if allowed, or if a call in flight must settle first
 *          ""    the limit that denied
 *          ""    with HOLD, the permit to settle
 *          ""    the reason, where it is not an exhausted limit; `locked` by a lock-out; `overload` also if allowed
 */

import {
  ATTEMPT_OUTCOMES,
  type AttemptOutcome,
  NEVER,
  OUTCOMES,
  type Outcome,
} from '../../../core/decision.ts';
import { MAX_AMOUNT } from '../../../core/options.ts';
import { EXPECTED_ID, isId } from '../../../limiter/idempotent-calls.ts';
import type { NamedRuleStatus } from '../../../limiter/inspection.ts';
import type { PermitResult } from '../../../limiter/permit.ts';
import { toKeyText } from '../../keys/binary-key.ts';
import { isLocked } from '../../router/report.ts';
import {
  type CheckRequest,
  type CheckResult,
  type KeyStatus,
  mayLeave,
  type RoutedRequest,
  type TakeResult,
} from '../../router/request.ts';
import { staticVerdictFields } from '../../router/route.ts';
import type { Router } from '../../router/router.ts';
import { shedOpen } from '../../router/shed.ts';
import {
  type Arguments,
  type Invocation,
  NOT_AN_INTEGER,
  notAnAmount,
  type RespCommand,
  SYNTAX,
  type WriteReply,
} from './command.ts';
import type { ReplyValue, RespWriter } from './reply.ts';

/** In place of a limit's name: all limits that match the key. */
export const ANY_LIMIT = '*';

export const HOLD = Buffer.from('hold');
const PLAN = Buffer.from('plan');
const ATTEMPT = Buffer.from('attempt');
export const ID = Buffer.from('id');

export const NO_ATTEMPT = `ERR attempt must be ${ATTEMPT_OUTCOMES.join(' or ')}`;
export const INVALID_ID = `ERR id must be ${EXPECTED_ID}`;

/** Why `router` has no route for a limit, perhaps with a plan: `api[pro]`. */
export function noSuchLimit(name: string, { planNames }: Router): string {
  const [, limit = name, plan] = /^(.*)\[(.*)\]$/s.exec(name.slice(0, 130)) ?? [];
  return plan === undefined || planNames.has(plan)
    ? `ERR no limit is named '${limit}'`
    : `ERR no plan is named '${plan}'`;
}

/** Reads the arguments; a string is an error. */
function readCheck(args: Arguments, length = args.count): CheckRequest | string {
  const limit = args.text(1);
  const hasPlan = length > 4 && args.isKeyword(length - 2, PLAN);
  const count = length - (hasPlan ? 2 : 0);
  const wantsPermit = count > 3 && args.isKeyword(count - 1, HOLD);
  const rest = count - (wantsPermit ? 1 : 0);
  if (rest > 4) return SYNTAX;
  const cost = rest === 4 ? args.amount(3) : 1;
  if (Number.isNaN(cost)) return notAnAmount('cost', args.text(3));
  if (hasPlan)
    return { limit: `${limit}[${args.text(count + 1)}]`, key: args.text(2), cost, wantsPermit };
  const name = limit === ANY_LIMIT ? undefined : limit;
  return { limit: name, key: args.text(2), cost, wantsPermit };
}

function check({ args, reply, context }: Invocation): undefined | Promise<WriteReply> {
  const { router } = context;
  if (router.overload.isShedding && router.shedsAllOpen)
    return writeResult(reply, shedOpen(router));
  const hasId = args.count > 4 && args.isKeyword(args.count - 2, ID);
  const request = hasId ? readCheck(args, args.count - 2) : readCheck(args);
  if (typeof request === 'string') return reply.error(request);
  if (hasId && !isId(args.text(args.count - 1))) return reply.error(INVALID_ID);
  const routed = router.route(request);
  if (!routed) return reply.error(noSuchLimit(request.limit ?? '', router));
  const result = hasId
    ? router.idempotent(routed, args.text(args.count - 1), (known) => router.checkRouted(known))
    : router.checkRouted(routed);
  const { cost } = request;
  const isPlain =
    !(result instanceof Promise) && (cost <= 1 || result.decision.verdict === 'allow');
  if (isPlain) return writeResult(reply, result);
  return replyWithRest(reply, result, cost, remainingOf(router, routed));
}

/** Made here: a closure in `check` would cost every check an allocation. */
const remainingOf = (router: Router, routed: RoutedRequest) => () => router.remaining(routed);

/** Replies a decision. A refused cost above 1 may leave something, which `left` looks up; one up to 1 leaves nothing. */
export function replyWithRest(
  reply: RespWriter,
  result: CheckResult | Promise<CheckResult>,
  cost: number,
  left: () => number | Promise<number>,
): undefined | Promise<WriteReply> {
  const leftBy = (decided: CheckResult) => (mayLeave(decided, cost) ? left() : undefined);
  if (result instanceof Promise)
    return result.then(async (late) => {
      const rest = await leftBy(late);
      return (writer) => writeResult(writer, late, rest);
    });
  const rest = leftBy(result);
  if (!(rest instanceof Promise)) return writeResult(reply, result, rest);
  return rest.then((late) => (writer) => writeResult(writer, result, late));
}

/** `left`: what a refusal leaves; default nothing, or unknown if no limit was checked. */
export function writeResult(
  reply: RespWriter,
  { decision, limit = '', permit = '', staticVerdict, reason }: CheckResult,
  left = reason === 'unavailable' || reason === 'overload' ? Number.MAX_SAFE_INTEGER : 0,
): undefined {
  const isAllowed = decision.verdict === 'allow';
  reply.array(6);
  reply.integer(isAllowed ? 1 : 0);
  reply.integer(wholeRemaining(isAllowed ? decision.remaining : left));
  reply.integer(decision.verdict === 'deny' ? wholeMs(decision.retryAfterMs) : 0);
  reply.bulk(limit);
  reply.bulk(permit);
  return reply.bulk(staticVerdict?.reason ?? reason ?? (isLocked(decision) ? 'locked' : ''));
}

const wholeRemaining = (remaining: number): number =>
  remaining < Number.MAX_SAFE_INTEGER ? Math.max(0, Math.floor(remaining)) : -1;

const wholeMs = (ms: number): number => (ms === NEVER ? -1 : Math.ceil(ms));

const SETTLE_FIELDS: Readonly<Record<string, 'used' | 'rttMs' | 'retryAfterMs'>> = {
  used: 'used',
  rtt: 'rttMs',
  retryafter: 'retryAfterMs',
};

/** Reads the arguments; a string is an error. */
function readResult(args: Arguments): PermitResult | string {
  const outcome = args.count > 2 ? args.lowerText(2) : 'ok';
  if (!OUTCOMES.includes(outcome as Outcome)) return `ERR outcome must be ${OUTCOMES.join(', ')}`;
  const result: Record<string, number | string> = { outcome };
  for (let n = 3; n < args.count; n += 2) {
    if (args.isKeyword(n, ATTEMPT) && n + 1 < args.count) {
      const attempt = args.lowerText(n + 1);
      if (!ATTEMPT_OUTCOMES.includes(attempt as AttemptOutcome)) return NO_ATTEMPT;
      result.attempt = attempt;
      continue;
    }
    const field =
      Object.hasOwn(SETTLE_FIELDS, args.lowerText(n)) && SETTLE_FIELDS[args.lowerText(n)];
    if (!field || n + 1 === args.count) return SYNTAX;
    const amount = args.amount(n + 1);
    if (Number.isNaN(amount)) return notAnAmount(args.text(n).toUpperCase(), args.text(n + 1));
    result[field] = amount;
  }
  return result;
}

function settle({ args, reply, context }: Invocation): undefined {
  const result = readResult(args);
  if (typeof result === 'string') return reply.error(result);
  return reply.integer(context.router.permits.settle(args.text(1), result) ? 1 : 0);
}

function takeUpTo({ args, reply, context }: Invocation): undefined | Promise<WriteReply> {
  const { router } = context;
  const [limit, max] = [args.text(1), args.integer(3)];
  const wantsPermit = args.count === 5 && args.isKeyword(4, HOLD);
  if (args.count > 5 || (args.count === 5 && !wantsPermit)) return reply.error(SYNTAX);
  if (!(max >= 0 && max <= MAX_AMOUNT)) return reply.error(NOT_AN_INTEGER);
  const name = limit === ANY_LIMIT ? undefined : limit;
  const routed = router.route({ limit: name, key: args.text(2), cost: max, wantsPermit });
  if (!routed) return reply.error(noSuchLimit(limit, router));
  const write = (writer: RespWriter, { taken, permit = '', reason }: TakeResult): undefined => {
    writer.array(reason === undefined ? 2 : 3);
    writer.integer(taken);
    writer.bulk(permit);
    if (reason !== undefined) writer.bulk(reason);
  };
  const result = router.takeUpTo(routed, max);
  if (result instanceof Promise) return result.then((late) => (writer) => write(writer, late));
  return write(reply, result);
}

function giveBack({ args, reply, context }: Invocation): undefined {
  const unused = args.integer(2);
  if (!(unused >= 0 && unused <= MAX_AMOUNT)) return reply.error(NOT_AN_INTEGER);
  return reply.integer(context.router.permits.giveBack(args.text(1), unused) ? 1 : 0);
}

function inspect({ args, reply, context }: Invocation): undefined | Promise<WriteReply> {
  const { router } = context;
  const key = args.text(1);
  const name = args.count > 2 && args.text(2) !== ANY_LIMIT ? args.text(2) : undefined;
  const routed = router.route({ key, limit: name, cost: 1 });
  if (!routed) return reply.error(noSuchLimit(name ?? '', router));
  const { staticVerdict } = routed.route;
  const write = (writer: RespWriter, statuses: readonly KeyStatus[]): undefined =>
    writer.value({
      key: toKeyText(key),
      ...(staticVerdict && staticVerdictFields(staticVerdict)),
      limits: statuses.map(inspectionValue),
    });
  const statuses = router.inspect(routed);
  if (statuses instanceof Promise) return statuses.then((late) => (writer) => write(writer, late));
  return write(reply, statuses);
}

function inspectionValue(inspection: KeyStatus): ReplyValue {
  if (!('rules' in inspection)) return { ...inspection };
  const { name, remaining, opensInMs, by, rules, ...state } = inspection;
  const opening = { opensInMs: optionalWholeMs(opensInMs), by };
  return { name, remaining, ...opening, ...state, rules: rules.map(ruleValue) };
}

const ruleValue = (rule: NamedRuleStatus): ReplyValue => ({
  name: rule.name,
  kind: rule.kind,
  quota: rule.quota,
  windowMs: rule.windowMs,
  remaining: rule.remaining,
  opensInMs: optionalWholeMs(rule.opensInMs),
  freshInMs: optionalWholeMs(rule.freshInMs),
});

const optionalWholeMs = (ms: number | undefined): number | undefined =>
  ms === undefined ? undefined : wholeMs(ms);

export const sluiceCommands: readonly RespCommand[] = [
  {
    name: 'sluice.check',
    arity: -3,
    keyIndex: 2,
    summary: 'Checks a configured limit, or all that match the key',
    usage: 'limit key [cost] [HOLD] [PLAN name] [ID id]',
    run: check,
  },
  {
    name: 'sluice.settle',
    arity: -2,
    summary: 'Settles a permit of SLUICE.CHECK with HOLD',
    usage: 'permit [outcome] [USED amount] [RTT ms] [RETRYAFTER ms] [ATTEMPT success|failure]',
    run: settle,
  },
  {
    name: 'sluice.takeupto',
    arity: -4,
    keyIndex: 2,
    summary: 'Takes as many as there are, up to a maximum',
    usage: 'limit key max [HOLD]',
    run: takeUpTo,
  },
  {
    name: 'sluice.giveback',
    arity: 3,
    summary: 'Gives back what was not used of SLUICE.TAKEUPTO with HOLD',
    usage: 'permit unused',
    run: giveBack,
  },
  {
    name: 'sluice.inspect',
    arity: -2,
    keyIndex: 1,
    summary: 'The status of a key: remaining tokens, binding rule, time to open',
    usage: 'key [limit]',
    run: inspect,
  },
];
