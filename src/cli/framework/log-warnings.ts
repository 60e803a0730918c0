import type { Log } from '../../core/log.ts';
import { redirectWarnings, type WarningSource } from '../../core/process-warning.ts';

/** The log takes the place of Node's text, as its lines may be read by a program. */
export const logWarnings = (source: WarningSource, log: Log): void =>
  redirectWarnings(source, (warning) => log('warn', 'process warning', { ...warning }));
