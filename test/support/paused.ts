/** Servers that run and do not reply. */

import type { Service } from './services.ts';

/** Pauses servers while `act` runs; what it returns. */
export async function whilePaused<T>(
  servers: Service | readonly Service[],
  act: () => Promise<T>,
): Promise<T> {
  const paused = [servers].flat();
  for (const server of paused) server.pause();
  try {
    return await act();
  } finally {
    for (const server of paused) server.resume();
  }
}
