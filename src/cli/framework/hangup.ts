/**
 * SIGHUP, which asks a daemon to reload. Its default action ends the process, so it is held from the first moment, before
 * the rest of the program is loaded.
 */

let isPending = false;

const hold = (): void => {
  isPending = true;
};

/** From now on a SIGHUP waits for `onHangup`. */
export function holdHangup(): void {
  process.on('SIGHUP', hold);
}

/** Calls the handler for each SIGHUP, and now if one has come before. */
export function onHangup(handler: () => void): void {
  process.on('SIGHUP', handler);
  process.off('SIGHUP', hold);
  if (isPending) handler();
  isPending = false;
}
