import type { CheckItem, Client } from '../client/index.ts';
import { systemClock } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import { RejectedError } from '../core/errors.ts';
import { toPrintableLine } from '../core/printable.ts';
import { formatRetryAfter } from './chart/format.ts';
import { CONNECTION_FLAGS, connectByFlags, messageOf, parseTime } from './daemon-connection.ts';
import {
  type Command,
  CommandError,
  EXIT_CANNOT_RUN,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  LIST,
  onlyPositional,
  rangeFlag,
  readArgs,
  SWITCH,
  TEXT,
} from './framework/command.ts';

export const check: Command = {
  help: `usage: sluice check KEY [options]

Checks whether a call is allowed for a key, and counts it.

options:
  --at ADDRESS       RESP address of the daemon: host:port, a port or a socket path; default 127.0.0.1:7611
  --limit NAME       one limit by its name; default: those that match the key
  --plan NAME        the plan of the key; default: that of the daemon's plan file
  --cost N           cost of the call; 0 counts nothing; default 1
  --also CHECK       another limit and key that the call counts in: LIMIT,KEY or LIMIT@COST,KEY. Repeatable. The call is
                     allowed only if all limits allow it, and otherwise counted in none. The limit * is those that match.
                     With --wait it waits for all of them
  --id ID            repeated checks of the key with this id are charged once, for a minute
  --wait TIME        waits in the daemon's queue until the call is allowed, at most so long; default: no wait
  --flow NAME        with --wait, for limits with \`queue: fair\`: whose call it is; default: the key
  --tenant NAME      the tenant whose fair share the flow divides with others
  --deadline TIME    how long to wait for a reply, with --wait in addition to it; default 1s
  --tls              connect with TLS
  --ca FILE          trusted certificate authorities, in PEM; default: those of the system. Implies --tls
  --open             fail open: allow the call if the daemon is unavailable
  --json             the decision as JSON

The password, if the daemon has one, comes from $SLUICE_RESP_PASSWORD.
Exit code 0 if the call is allowed, 1 if it is denied, 2 if the daemon is unavailable or rejects the request.

examples:
  sluice check alice
  sluice check user:alice --limit login-user --also login-ip,ip:10.0.0.1
  sluice check report --wait 30s && ./report.sh
  sluice check user:alice --limit login-user --also login-ip,ip:10.0.0.1 --wait 5s
  sluice check backup --limit nightly --open && ./backup.sh`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      ...CONNECTION_FLAGS,
      limit: TEXT,
      plan: TEXT,
      cost: TEXT,
      also: LIST,
      id: TEXT,
      wait: TEXT,
      flow: TEXT,
      tenant: TEXT,
      open: SWITCH,
      json: SWITCH,
    });
    const key = onlyPositional(positionals, 'key');
    const cost = rangeFlag(values, 'cost', 1, { min: 0 });
    const also = values.also?.map(parseAlso) ?? [];
    const waitMs = values.wait === undefined ? undefined : parseTime('--wait', values.wait);
    if (values.id !== undefined && also.length > 0)
      throw new CommandError('expected `--id` or `--also`, got both');
    const { flow, tenant } = values;
    if (waitMs === undefined && (flow ?? tenant) !== undefined)
      throw new CommandError('expected `--wait` with `--flow` or `--tenant`, got none');
    const client = connectByFlags(values);
    try {
      const { limit, plan, id } = values;
      const named = { ...(limit !== undefined && { limit }), ...(plan !== undefined && { plan }) };
      const once = { ...named, ...(id !== undefined && { id }) };
      const waiting = waitMs !== undefined && {
        ...(flow !== undefined && { flow }),
        ...(tenant !== undefined && { tenant }),
        wait: waitMs,
      };
      const checks = [{ key, cost, ...named }, ...also];
      const ask = (): Promise<CheckReply> => {
        if (also.length > 0)
          return waiting ? client.acquireAll(checks, waiting) : client.checkAll(checks);
        if (waiting) return client.acquire(key, { ...once, ...waiting, cost });
        return client.check(key, cost, once);
      };
      const { unavailable, rejected, ...decision } = await ask().catch(toRejected);
      if (rejected) {
        terminal.error(`sluice check: ${messageOf(rejected).replace(/^.*: ERR /, '')}`);
        return EXIT_CANNOT_RUN;
      }
      if (unavailable) {
        const fallback = values.open ? '; allowed by --open' : '';
        terminal.error(`sluice check: ${messageOf(unavailable)}${fallback}`);
        if (values.open && values.json) terminal.print(JSON.stringify({ verdict: 'allow' }));
        return values.open ? EXIT_OK : EXIT_CANNOT_RUN;
      }
      const isAllowed = decision.verdict === 'allow';
      terminal.print(
        toPrintableLine(values.json ? JSON.stringify(decision) : formatDecision(decision)), // JSON writes never as null
      );
      return isAllowed ? EXIT_OK : EXIT_CHECK_FAILED;
    } finally {
      await client.close();
    }
  },
};

/** A mistake in the flags is printed as any other rejected request. */
function toRejected(error: unknown): CheckReply {
  if (error instanceof RejectedError)
    return { verdict: 'deny', retryAfterMs: NEVER, rejected: error };
  throw error;
}

/** `LIMIT@COST,KEY`: the key is last, and may have any character. */
function parseAlso(text: string): CheckItem {
  const [, limit, cost = '1', key] = /^([^,@]+)(?:@(\d+(?:\.\d+)?))?,(.*)$/s.exec(text) ?? [];
  if (limit === undefined)
    throw new CommandError(`expected \`--also\` to be LIMIT,KEY or LIMIT@COST,KEY, got "${text}"`);
  return { key, cost: Number(cost), ...(limit !== '*' && { limit }) };
}

type CheckReply = Awaited<ReturnType<Client['check']>>;

const REASON_TEXTS: Readonly<Record<string, string>> = {
  unavailable: 'backend unavailable, ',
  'queue-full': 'too many calls wait, ',
  locked: 'locked, ',
  overload: 'daemon overloaded, ',
};

function formatDecision(decision: CheckReply): string {
  if (decision.verdict === 'allow') {
    if (decision.reason === 'overload') return 'OK: daemon overloaded, not counted';
    return decision.remaining === undefined ? 'OK' : `OK, ${decision.remaining} left`;
  }
  if (decision.reason === 'banned') {
    const until = new Date(systemClock.now() + decision.retryAfterMs);
    return `NO: banned, until ${until.toISOString()}`;
  }
  const by = decision.limit === undefined ? '' : `, limit ${decision.limit}`;
  const reason = REASON_TEXTS[decision.reason ?? ''] ?? '';
  const left = decision.remaining ? `, ${decision.remaining} left` : '';
  return `NO${by}${left}: ${reason}${formatRetryAfter(decision.retryAfterMs, 'try again in')}`;
}
