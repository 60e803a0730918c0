/**
 * What somebody should know and nobody asked about.
 *
 * Node has a channel for this that programs can watch and users can silence; elsewhere there is the
 * console. Each kind of warning is given once a process: it points at a mistake, not at traffic.
 */

type WarningCode = 'LISTENER' | 'LOST_PERMIT' | 'ADAPTER';

interface Host {
  readonly process?: { emitWarning?(message: string, options: object): void };
  readonly console?: { warn?(message: string): void };
}

const given = new Set<WarningCode>();

export function warn(code: WarningCode, message: string): void {
  if (given.has(code)) return;
  given.add(code);
  const host = globalThis as Host;
  const options = { type: 'SluiceWarning', code: `SLUICE_${code}` };
  if (host.process?.emitWarning) host.process.emitWarning(message, options);
  else host.console?.warn?.(`SluiceWarning: ${message}`);
}
