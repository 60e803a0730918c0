/** A deadline for work that has none of its own. */

import { type Clock, type Millis, schedule } from './clock.ts';
import { UnavailableError } from './errors.ts';

/**
 * Rejects if the work takes longer than that, and lets it know: it is not waited for any more. A process does not end
 * meanwhile if `keepAlive`, whatever the work waits for.
 */
export async function withDeadline<T>(
  clock: Clock,
  ms: Millis,
  who: string,
  work: (isOver: () => boolean) => Promise<T>,
  keepAlive = false,
): Promise<T> {
  let isOver = false;
  let cancel = (): void => {};
  const late = new Promise<never>((_, giveUp) => {
    const tell = (): void => {
      isOver = true;
      giveUp(new UnavailableError(who, `no answer within ${ms} ms`));
    };
    cancel = schedule(clock, clock.now() + ms, tell, keepAlive);
  });
  try {
    return await Promise.race([work(() => isOver), late]);
  } finally {
    cancel();
  }
}

/** Comes back when it is done, or after so long: whether it is; rejects if it has failed by then. */
export async function completesWithin(
  clock: Clock,
  ms: Millis,
  done: Promise<unknown>,
): Promise<boolean> {
  let cancel = (): void => {};
  const moment = new Promise<boolean>((resolve) => {
    cancel = schedule(clock, clock.now() + ms, () => resolve(false), true);
  });
  return Promise.race([done.then(() => true), moment]).finally(cancel);
}
