/**
 * A check that waits for its permit, with the reply of SLUICE.CHECK.
 *
 *     SLUICE.ACQUIRE per-client ip:10.0.0.1 WAIT 500     waits up to 500 ms; commands behind it wait too, as behind BLPOP
 */

import type { Millis } from '../../../core/clock.ts';
import { formatMismatch } from '../../../core/errors.ts';
import { FLOW_FIELDS, type FlowOptions, flowProblem } from '../../../core/flow.ts';
import { isId } from '../../../limiter/idempotent-calls.ts';
import type { Router } from '../../router/router.ts';
import type { WaitLimits } from '../../router/waiting.ts';
import {
  type Arguments,
  type CommandReply,
  type Invocation,
  NOT_AN_INTEGER,
  notAnAmount,
  type RespCommand,
  SYNTAX,
} from './command.ts';
import { ANY_LIMIT, HOLD, ID, INVALID_ID, noSuchLimit, replyWithRest } from './sluice.ts';

const WAIT = Buffer.from('wait');

/** The fields of a flow by their keyword; a weight is a number. */
const FLOW_KEYWORDS = new Map(FLOW_FIELDS.map((name) => [name.toLowerCase(), name]));

/** True of the keywords that follow what is checked. */
export const isWaitKeyword = (args: Arguments, n: number): boolean =>
  [WAIT, HOLD, ID].some((word) => args.isKeyword(n, word)) || FLOW_KEYWORDS.has(args.lowerText(n));

/** Reads `WAIT ms [HOLD] [ID id] [FLOW name] …`, in any order. A string is an error. */
export function readWaitOptions(args: Arguments, from: number) {
  let waitMs: number | undefined;
  let wantsPermit = false;
  let id: string | undefined;
  const flow: { -readonly [F in keyof FlowOptions]: FlowOptions[F] } = {};
  for (let n = from; n < args.count; n++) {
    if (!wantsPermit && args.isKeyword(n, HOLD)) wantsPermit = true;
    else if (waitMs === undefined && args.isKeyword(n, WAIT) && n + 1 < args.count)
      waitMs = args.integer(++n);
    else if (id === undefined && args.isKeyword(n, ID) && n + 1 < args.count) id = args.text(++n);
    else {
      const field = FLOW_KEYWORDS.get(args.lowerText(n));
      if (!field || field in flow || ++n >= args.count) return SYNTAX;
      if (field === 'flow' || field === 'tenant') flow[field] = args.text(n);
      else flow[field] = args.amount(n);
    }
  }
  if (waitMs === undefined) return SYNTAX;
  if (id !== undefined && !isId(id)) return INVALID_ID;
  const problem = flowProblem(flow);
  if (problem) return `ERR ${formatMismatch(...problem)}`;
  const isNamed = flow.flow !== undefined || flow.tenant !== undefined;
  const options = { waitMs, wantsPermit, id, flow: isNamed ? flow : undefined };
  return waitMs >= 0 ? options : NOT_AN_INTEGER;
}

/** The error of a wait above the bound. */
export function waitTooLong(waitMs: Millis, { waiting }: Router): string | undefined {
  const { maxWaitMs } = waiting.bounds;
  return waitMs > maxWaitMs ? `ERR WAIT must be at most ${maxWaitMs} ms (bounds.wait)` : undefined;
}

function acquire({ args, reply, context, client }: Invocation): CommandReply {
  const { router } = context;
  const hasCost = !isWaitKeyword(args, 3);
  const cost = hasCost ? args.amount(3) : 1;
  if (Number.isNaN(cost)) return reply.error(notAnAmount('cost', args.text(3)));
  const options = readWaitOptions(args, hasCost ? 4 : 3);
  if (typeof options === 'string') return reply.error(options);
  const { waitMs, id, flow, wantsPermit } = options;
  const problem = waitTooLong(waitMs, router);
  if (problem !== undefined) return reply.error(problem);
  const name = args.text(1);
  const limit = name === ANY_LIMIT ? undefined : name;
  const sent = { limit, key: args.text(2) };
  const routed = router.route({ ...sent, cost, wantsPermit });
  if (!routed) return reply.error(noSuchLimit(name, router));
  const limits: WaitLimits = { waitMs, signal: client.signal, flow };
  const result =
    id === undefined
      ? router.acquire(routed, sent, limits)
      : router.idempotent(routed, id, (known) => router.acquire(known, sent, limits));
  return replyWithRest(reply, result, cost, () => router.remaining(routed));
}

export const acquireCommand: RespCommand = {
  name: 'sluice.acquire',
  arity: -5,
  keyIndex: 2,
  isBlocking: true,
  summary: 'Checks as SLUICE.CHECK does, and waits until the call is admitted or its time is over',
  usage:
    'limit key [cost] WAIT ms [HOLD] [ID id] [FLOW name] [FLOWWEIGHT n] [TENANT name] [TENANTWEIGHT n]',
  run: acquire,
};
