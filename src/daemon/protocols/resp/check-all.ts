/**
 * SLUICE.CHECKALL: several limits and keys in one question. All are charged, or none.
 *
 *     SLUICE.CHECKALL login-user user:alice 1 login-ip ip:10.0.0.1 1
 *     ──▶  as SLUICE.CHECK: remaining is that of the tightest limit, and the limit that denied has the longest wait
 */

import {
  checkAll,
  type JointPart,
  MAX_JOINT_CHECKS,
  remainingOfAll,
} from '../../router/joint-check.ts';
import {
  type Invocation,
  notAnAmount,
  type RespCommand,
  SYNTAX,
  type WriteReply,
} from './command.ts';
import { ANY_LIMIT, HOLD, noSuchLimit, replyWithRest } from './sluice.ts';

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
    const request = context.router.route({ limit, key: args.text(n + 1), cost });
    if (!request) return noSuchLimit(name, context.router);
    parts.push({ limit, request });
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
