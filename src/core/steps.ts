/**
 * A long computation in steps, between which other work may run.
 *
 *     function* readAll(items): Steps<Value[]> { for (…) { …; yield; } return values; }
 *
 *     runAtOnce(readAll(items))             the result, where a pause does no harm
 *     await runInSlices(readAll(items))     the same without a pause: the event loop turns at least every SLICE_MS
 *     runInBackground(moveAll(keys))        the same after all others that run in the background, in half of the time
 *     await backgroundIdle()                all of them have ended
 *     await nextTurn()                      lets the event loop turn between two parts of an `async` function
 */

import { type Millis, onImmediate, schedule, systemClock, timersEndWithRequest } from './clock.ts';

/** Every `yield` is an instant at which the computation may be interrupted. */
export type Steps<T> = Generator<void, T, void>;

const SLICE_MS: Millis = 1;

export function runAtOnce<T>(steps: Steps<T>): T {
  let step = steps.next();
  while (!step.done) step = steps.next();
  return step.value;
}

/** Resolves when the event loop has turned: an `await` of something that is ready does not let it. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => onImmediate(resolve));

export async function runInSlices<T>(steps: Steps<T>, pause = nextTurn): Promise<T> {
  for (;;) {
    const endsAt = systemClock.now() + SLICE_MS;
    do {
      const step = steps.next();
      if (step.done) return step.value;
    } while (systemClock.now() < endsAt);
    await pause();
  }
}

/** As long as a slice: what runs in the background leaves half of a processor to others. */
const restForSlice = timersEndWithRequest
  ? nextTurn
  : (): Promise<void> =>
      new Promise((resolve) => schedule(systemClock, systemClock.now() + SLICE_MS, resolve, true));

let lastInBackground: Promise<unknown> = Promise.resolve();

/** One after the other: a thousand of them at a time would be a pause, too. The computation must not throw. */
export function runInBackground(steps: Steps<void>): void {
  lastInBackground = lastInBackground.then(() => runInSlices(steps, restForSlice));
}

/** Resolves when nothing runs in the background. */
export async function backgroundIdle(): Promise<void> {
  for (let last: unknown; last !== lastInBackground; ) {
    last = lastInBackground;
    await lastInBackground;
  }
}
