import { afterReads, wasBlocked } from './call-deadline.ts';
import { type Clock, type Millis, schedule } from './clock.ts';
import { UnavailableError } from './errors.ts';

export const lateReplyMessage = (ms: Millis): string => `no reply within ${ms} ms`;

/**
 * Rejects with `UnavailableError` if `work` takes longer than `ms`; `isOver` tells the work that its result is no longer
 * used. With `keepAlive` the timer keeps the process alive.
 */
export async function withDeadline<T>(
  clock: Clock,
  ms: Millis,
  component: string,
  work: (isOver: () => boolean) => Promise<T>,
  keepAlive = false,
): Promise<T> {
  let isOver = false;
  const result = work(() => isOver);
  if (await completesWithin(clock, ms, result, keepAlive)) return result;
  isOver = true;
  throw new UnavailableError(component, lateReplyMessage(ms));
}

/**
 * Resolves to true when `done` resolves, or to false after `ms`; rejects if `done` rejects first. If this process was
 * blocked meanwhile, what has arrived is read first.
 */
export async function completesWithin(
  clock: Clock,
  ms: Millis,
  done: Promise<unknown>,
  keepAlive = true,
): Promise<boolean> {
  let cancel = (): void => {};
  const timeout = new Promise<boolean>((resolve) => {
    const until = clock.now() + ms;
    const expire = (): void => resolve(false);
    const onTimer = (): void =>
      wasBlocked(clock.now() - until, ms) ? afterReads(expire) : expire();
    cancel = schedule(clock, until, onTimer, keepAlive);
  });
  return Promise.race([done.then(() => true), timeout]).finally(cancel);
}
