/** Waiting for what may never come. */

import { alarm, type Clock, type Millis } from '../clock.ts';

/** Comes back when it is done, or after so long: whether it is; rejects if it has failed by then. */
export async function atMost(clock: Clock, ms: Millis, done: Promise<unknown>): Promise<boolean> {
  let cancel = (): void => {};
  const moment = new Promise<boolean>((resolve) => {
    cancel = alarm(clock, clock.now() + ms, () => resolve(false), true);
  });
  return Promise.race([done.then(() => true), moment]).finally(cancel);
}
