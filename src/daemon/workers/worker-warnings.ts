import type { Log } from '../../core/log.ts';
import {
  type ProcessWarning,
  redirectWarnings,
  type WarningSource,
} from '../../core/process-warning.ts';

/** A warning on the way to the daemon. */
export interface WarningMessage {
  readonly warning: ProcessWarning;
}

export const sendWarnings = (
  source: WarningSource,
  send: (message: WarningMessage) => unknown,
): void => redirectWarnings(source, (warning) => send({ warning }));

export const logWorkerWarning = (log: Log, pid: number, { warning }: WarningMessage): void =>
  log('warn', 'process warning', { pid, ...warning });
