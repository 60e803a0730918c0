import { ATTEMPT_OUTCOMES, type AttemptOutcome } from '../core/decision.ts';
import { RejectedError } from '../core/errors.ts';
import { CONNECTION_FLAGS, connectByFlags, messageOf } from './daemon-connection.ts';
import {
  type Command,
  CommandError,
  EXIT_CANNOT_RUN,
  EXIT_OK,
  readArgs,
  TEXT,
} from './framework/command.ts';

export const report: Command = {
  help: `usage: sluice report KEY success|failure [options]

Reports how an attempt of a key ended, such as a login, to the limits with a lock-out. A failure counts towards
the next lock. A success forgets the failures of the key, or with \`onSuccess: return\` its own attempt.

options:
  --at ADDRESS       RESP address of the daemon: host:port, a port or a socket path; default 127.0.0.1:7611
  --limit NAME       one limit by its name; default: those that match the key
  --plan NAME        the plan of the key; default: that of the daemon's plan file
  --deadline TIME    how long to wait for a reply; default 1s
  --tls              connect with TLS
  --ca FILE          trusted certificate authorities, in PEM; default: those of the system. Implies --tls

The password, if the daemon has one, comes from $SLUICE_RESP_PASSWORD.
Exit code 0 if a limit was told, 2 if the daemon is unavailable or no limit of the key has a lock-out.

example:
  sluice report user:alice failure --limit login-user`,

  async run(args, terminal) {
    const flags = { ...CONNECTION_FLAGS, limit: TEXT, plan: TEXT };
    const { values, positionals } = readArgs(args, flags);
    const [key, attempt] = positionals;
    if (positionals.length !== 2 || !ATTEMPT_OUTCOMES.includes(attempt as AttemptOutcome))
      throw new CommandError('expected a key, and success or failure; see --help');
    const { limit, plan } = values;
    const named = { ...(limit !== undefined && { limit }), ...(plan !== undefined && { plan }) };
    const client = connectByFlags(values);
    try {
      const isCounted = await client
        .report(key, attempt as AttemptOutcome, named)
        .catch((error) => {
          throw error instanceof RejectedError ? new CommandError(messageOf(error)) : error;
        });
      if (isCounted) return EXIT_OK;
      terminal.error(
        'sluice report: not counted: no lock-out applies, or the daemon is unavailable',
      );
      return EXIT_CANNOT_RUN;
    } finally {
      await client.close();
    }
  },
};
