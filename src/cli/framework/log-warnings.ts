/** Process warnings of a daemon, its own and those of Node, as lines of its log. */

import type { Log } from '../../core/log.ts';

type Warning = Error & { readonly code?: string };

/** What emits warnings: the process. */
interface WarningSource {
  removeAllListeners(event: 'warning'): unknown;
  on(event: 'warning', listener: (warning: Warning) => void): unknown;
}

/** Node prints a warning as plain text by a listener: the log takes its place, as its lines may be read by a program. */
export function logWarnings(source: WarningSource, log: Log): void {
  source.removeAllListeners('warning');
  source.on('warning', ({ name, message, code }) =>
    log('warn', 'process warning', { code: code ?? name, reason: message }),
  );
}
