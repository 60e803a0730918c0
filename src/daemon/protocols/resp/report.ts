/**
 * SLUICE.REPORT: how an attempt of a key ended, for limits with a lock-out.
 *
 *     SLUICE.REPORT login-user user:alice failure     one limit by name; * means all that match the key
 *     ──▶  1     how many limits got the report
 */

import { ATTEMPT_OUTCOMES, type AttemptOutcome } from '../../../core/decision.ts';
import { ConfigError } from '../../../core/errors.ts';
import { reportAttempt } from '../../router/report.ts';
import type { Invocation, RespCommand, WriteReply } from './command.ts';
import { ANY_LIMIT, NO_ATTEMPT, noSuchLimit } from './sluice.ts';

const isAttempt = (text: string): text is AttemptOutcome =>
  ATTEMPT_OUTCOMES.includes(text as AttemptOutcome);

function report({ args, reply, context }: Invocation): undefined | Promise<WriteReply> {
  const [limit, key, attempt] = [args.text(1), args.text(2), args.lowerText(3)];
  if (!isAttempt(attempt)) return reply.error(NO_ATTEMPT);
  const name = limit === ANY_LIMIT ? undefined : limit;
  const routed = context.router.route({ limit: name, key, cost: 1 });
  if (!routed) return reply.error(noSuchLimit(limit, context.router));
  return reportAttempt(routed, attempt).then(
    (told) => (writer) => writer.integer(told),
    (error: unknown) => (writer) => {
      if (!(error instanceof ConfigError)) throw error;
      writer.error(`ERR ${error.message}`);
    },
  );
}

export const reportCommand: RespCommand = {
  name: 'sluice.report',
  arity: 4,
  keyIndex: 2,
  summary: 'Reports how an attempt of a key ended, such as a login, to limits with a lock-out',
  usage: 'limit key success|failure',
  run: report,
};
