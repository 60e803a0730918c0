/** `sluice check`: asks a running daemon from a shell. */

import { parseEndpoint } from '../client/address.ts';
import { connect } from '../client/index.ts';
import { NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import {
  type Command,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  parseUnitless,
  rangeFlag,
  readArgs,
  readTextFile,
  UsageError,
} from './framework/command.ts';

export const check: Command = {
  name: 'check',
  summary: 'asks a running daemon whether a call may happen',
  help: `usage: sluice check KEY [options]

Asks the daemon whether one more call may happen for a key, and counts it.

options:
  --at ADDRESS       where its RESP surface is: host:port, a port or a path; default 127.0.0.1:7611
  --limit NAME       one limit by its name; default: those that are for the key
  --cost N           what the call weighs; 0 only looks; default 1
  --deadline TIME    how long to wait for an answer; default 1s
  --tls              speak TLS
  --ca FILE          whose certificates to trust, in PEM; default: those the system trusts. Implies --tls
  --open             let the call happen if the daemon does not answer
  --json             the answer for machines

The password, if the daemon wants one, comes from $SLUICE_RESP_PASSWORD.
Exit code 0 if it may happen, 1 if not, 2 if the daemon could not be asked.

examples:
  sluice check alice
  sluice check backup --limit nightly --open && ./backup.sh`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      at: { type: 'string' },
      limit: { type: 'string' },
      cost: { type: 'string' },
      deadline: { type: 'string' },
      tls: { type: 'boolean' },
      ca: { type: 'string' },
      open: { type: 'boolean' },
      json: { type: 'boolean' },
    });
    const [key, ...others] = positionals;
    if (key === undefined || others.length > 0) {
      throw new UsageError('expected one key; see --help');
    }
    const cost = rangeFlag('cost', values.cost, 1, { min: 0 });
    const password = process.env.SLUICE_RESP_PASSWORD;
    const client = connect({
      at: parseEndpoint(values.at ?? '127.0.0.1:7611', '--at'),
      deadline: parseDeadline(values.deadline),
      onUnavailable: values.open ? 'allow' : 'deny',
      ...(password && { password }),
      ...((values.tls || values.ca !== undefined) && { tls: tlsOptionsOf(values.ca) }),
    });
    try {
      const limit = values.limit === undefined ? {} : { limit: values.limit };
      const { unavailable, ...answer } = await client.check(key, cost, limit);
      if (unavailable) {
        const instead = values.open ? '; let through all the same' : '';
        const why = unavailable.message.replace(/^.*: ERR /, ''); // it did answer: that this makes no sense
        terminal.error(`sluice check: ${why}${instead}`);
        if (values.open && values.json) terminal.print(JSON.stringify({ verdict: 'allow' }));
        return values.open ? EXIT_OK : EXIT_USAGE;
      }
      const isAllowed = answer.verdict === 'allow';
      terminal.print(
        values.json ? JSON.stringify(answer, omitInfiniteRemaining) : formatDecision(answer),
      );
      return isAllowed ? EXIT_OK : EXIT_CHECK_FAILED;
    } finally {
      await client.close();
    }
  },
};

/** Checked here, under the name it was typed with. */
const parseDeadline = (text = '1s'): number =>
  new OptionReader('', { '--deadline': parseUnitless(text) }).duration('--deadline');

function tlsOptionsOf(ca: string | undefined): true | { ca: string } {
  return ca === undefined ? true : { ca: readTextFile(ca) };
}

type CheckReply = Awaited<ReturnType<ReturnType<typeof connect>['check']>>;

function formatDecision(answer: CheckReply): string {
  if (answer.verdict === 'allow') {
    return answer.remaining === Infinity ? 'OK' : `OK, ${answer.remaining} left`;
  }
  const by = answer.limit === undefined ? '' : `, limit ${answer.limit}`;
  const why = answer.reason === 'unavailable' ? 'nobody could decide, ' : '';
  return `NO${by}: ${why}${formatRetryAfter(answer.retryAfterMs)}`;
}

/** Never is also what a deny list says, so this does not say why. */
function formatRetryAfter(retryAfterMs: number): string {
  if (retryAfterMs === NEVER) return 'never';
  return retryAfterMs === WHEN_SETTLED
    ? 'until a call settles'
    : `try again in ${Math.ceil(retryAfterMs)} ms`;
}

/** JSON has null in the place of Infinity: that is a wait without end. Where nobody counts, nothing is said of a rest. */
const omitInfiniteRemaining = (name: string, value: unknown): unknown =>
  name === 'remaining' && value === Infinity ? undefined : value;
