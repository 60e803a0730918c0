/**
 * What somebody should know and nobody asked about.
 *
 * Node has a channel for this that programs can watch and users can silence; elsewhere there is the
 * console. Each kind of warning is given once a process, or once for each thing it is about: it
 * points at a mistake, not at traffic.
 */

type WarningCode =
  | 'LISTENER'
  | 'EXPIRED_PERMIT'
  | 'ADAPTER'
  /** A limiter failed, and requests are no longer checked. */
  | 'UNCHECKED'
  /** An option makes no sense of some requests. */
  | 'MISREAD'
  /** A limit stands behind what it should stand in front of. */
  | 'TOO_LATE'
  /** Nobody knows where requests come from. */
  | 'NO_ADDRESS'
  /** A fleet cannot be reached, or anybody could take part in it. */
  | 'PEERS'
  /** A pool's store cannot be reached, and nobody listens. */
  | 'POOL'
  /** A group cannot listen, and nobody can steal from it. */
  | 'GROUPS';

interface RuntimeGlobals {
  readonly process?: { emitWarning?(message: string, options: object): void };
  readonly console?: { warn?(message: string): void };
}

/** The most warnings a process gives: names may be made up as it goes. */
const MAX_WARNINGS = 100;

const emitted = new Set<string>();

export function emitProcessWarning(code: WarningCode, message: string, about = ''): void {
  const which = `${code} ${about}`;
  if (emitted.has(which) || emitted.size >= MAX_WARNINGS) return;
  emitted.add(which);
  const host = globalThis as RuntimeGlobals;
  const options = { type: 'SluiceWarning', code: `SLUICE_${code}` };
  if (host.process?.emitWarning) host.process.emitWarning(message, options);
  else host.console?.warn?.(`SluiceWarning: ${message}`);
}
