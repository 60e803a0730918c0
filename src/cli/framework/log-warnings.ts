/** Process warnings of a daemon, its own and those of Node, as lines of its log. */

import type { EventEmitter } from 'node:events';
import type { Log } from '../../core/log.ts';

/** Node prints a warning as plain text by a listener: the log takes its place, as its lines may be read by a program. */
export function logWarnings(source: EventEmitter, log: Log): void {
  source.removeAllListeners('warning');
  source.on('warning', ({ name, message, code }: Error & { readonly code?: string }) =>
    log('warn', 'process warning', { code: code ?? name, reason: message }),
  );
}
