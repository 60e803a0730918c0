/**
 * SLUICE.CHECKALL: several limits and keys in one check. All are charged, or none. SLUICE.ACQUIREALL waits for it.
 *
 *     SLUICE.CHECKALL login-user user:alice 1 login-ip ip:10.0.0.1 1
 *     SLUICE.ACQUIREALL login-user user:alice 1 login-ip ip:10.0.0.1 1 WAIT 500
 *     ──▶  as SLUICE.CHECK: remaining is that of the tightest limit, and the limit that denied has the longest wait
 */

import {
  checkAll,
  type JointPart,
  MAX_JOINT_CHECKS,
  remainingOfAll,
} from '../../router/joint-check.ts';
import { acquireAll, rerouted } from '../../router/joint-wait.ts';
import {
  type CommandReply,
  type Invocation,
  notAnAmount,
  type RespCommand,
  SYNTAX,
  type WriteReply,
} from './command.ts';
import { ANY_LIMIT, HOLD, noSuchLimit, replyWithRest } from './sluice.ts';
import { isWaitKeyword, readWaitOptions, waitTooLong } from './waiting.ts';

/** A limit, a key and a cost. */
const ARGUMENTS_PER_CHECK = 3;

/** Reads the arguments; a string is an error. */
function readParts({ args, context }: Invocation, end: number): readonly JointPart[] | string {
  const parts: JointPart[] = [];
  if ((end - 1) % ARGUMENTS_PER_CHECK !== 0) return SYNTAX;
  if ((end - 1) / ARGUMENTS_PER_CHECK > MAX_JOINT_CHECKS)
    return `ERR expected at most ${MAX_JOINT_CHECKS} checks`;
  for (let n = 1; n < end; n += ARGUMENTS_PER_CHECK) {
    const name = args.text(n);
    const limit = name === ANY_LIMIT ? undefined : name;
    const cost = args.amount(n + 2);
    if (Number.isNaN(cost)) return notAnAmount('cost', args.text(n + 2));
    const key = args.text(n + 1);
    const request = context.router.route({ limit, key, cost });
    if (!request) return noSuchLimit(name, context.router);
    parts.push({ limit, key, request });
  }
  return parts;
}

function run(call: Invocation): undefined | Promise<WriteReply> {
  const { args, reply, context } = call;
  const wantsPermit = args.isKeyword(args.count - 1, HOLD);
  const parts = readParts(call, args.count - (wantsPermit ? 1 : 0));
  if (typeof parts === 'string') return reply.error(parts);
  const { router } = context;
  const result = checkAll(router, parts, wantsPermit);
  return replyWithRest(reply, result, Infinity, () => remainingOfAll(router, parts));
}

export const checkAllCommand: RespCommand = {
  name: 'sluice.checkall',
  arity: -4,
  keyIndex: 2,
  keyStep: ARGUMENTS_PER_CHECK,
  summary: 'Checks several limits and keys as one call: all are charged, or none',
  usage: 'limit key cost [limit key cost] [HOLD]',
  run,
};

/** Where the options begin: the first keyword where a limit would be named. */
function optionsAt({ args }: Invocation): number {
  let n = 1 + ARGUMENTS_PER_CHECK;
  while (n < args.count && !isWaitKeyword(args, n)) n += ARGUMENTS_PER_CHECK;
  return Math.min(n, args.count);
}

function acquire(call: Invocation): CommandReply {
  const { args, reply, context, client } = call;
  const { router } = context;
  const at = optionsAt(call);
  const options = readWaitOptions(args, at);
  if (typeof options === 'string') return reply.error(options);
  const { waitMs, wantsPermit, id, flow } = options;
  if (id !== undefined) return reply.error('ERR ID is for one check: leave it out');
  const problem = waitTooLong(waitMs, router);
  if (problem !== undefined) return reply.error(problem);
  const parts = readParts(call, at);
  if (typeof parts === 'string') return reply.error(parts);
  const limits = { waitMs, signal: client.signal, flow };
  const result = acquireAll(router, parts, wantsPermit, limits);
  const left = () => remainingOfAll(router, rerouted(router, parts) ?? parts);
  return replyWithRest(reply, result, Infinity, left);
}

export const acquireAllCommand: RespCommand = {
  name: 'sluice.acquireall',
  arity: -6,
  keyIndex: 2,
  keyStep: ARGUMENTS_PER_CHECK,
  isBlocking: true,
  summary:
    'Checks as SLUICE.CHECKALL does, and waits until the call is admitted or its time is over',
  usage:
    'limit key cost [limit key cost] WAIT ms [HOLD] [FLOW name] [FLOWWEIGHT n] [TENANT name] [TENANTWEIGHT n]',
  run: acquire,
};
