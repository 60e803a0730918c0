import type { State } from '../policy.ts';

/** The numbers of a key, in the order in which they stand in the array. */
const NAMES = [
  'limit', //       with a fraction
  'mode',
  'cause', //       of the last change of the limit
  'inFlight',
  'kept', //        slots on top that priorities keep free
  // The window:
  'openedAt',
  'skip', //        calls that were in flight when the limit changed: they do not count
  'calls', //       successes
  'sum', //         of their round trips
  'squares',
  'denied', //      checks refused by the limit
  'group', //       calls of the sample, which has the quickest of them
  'lowSum', //      of the quickest calls of earlier samples
  'lowCalls',
  // What is known; NaN: not yet
  'floor', //       the quickest calls without a queue
  'base', //        the mean without a queue
  'mean', //        0 before the first window
  'lowAverage',
  'meanAverage',
  'meanCalls', //   that it consists of
  'anchor', //      the limit at the last test: windows leave 3/4 of it
  'idle', //        windows in a row without a queue
  // The test:
  'testedAt',
  'back', //        the limit before it
  'unclean', //     tests in a row that did not remove the queue
  // Complaints:
  'ok', //          successes of the last second, fading
  'no', //          refused and lost calls
  'countedAt',
  'tolerated', //   part of the calls
  'rateBefore', //  calls a millisecond before no call succeeded
  'row', //         refusals without a success between them; Infinity: no call succeeds
  'cutAt', //       calls sent before it say nothing any more
  'cutShare', //    complaints before the cut, as a part; 0: no cut
  'pace', //        calls a millisecond at `cutAt`; Infinity: none
  'nextAt', //      when the pace allows the next call
  // Silence and demand:
  'quietFrom', //   the last reply, or the last probe
  'most', //        calls in flight when silence was noticed; 0: no silence
  'lost', //        calls without a reply since a silence: slots on top for them
  'peak', //        most calls in flight or waiting since `peakAt`
  'peakAt',
] as const;

type Numbers = { [name in (typeof NAMES)[number]]: number };

/** One key of the array, by name. */
export interface Key extends Numbers {
  state: State;
  at: number;
}

/** The quickest calls of up to 64, sorted, stand behind the numbers. */
export const SAMPLE_AT = NAMES.length;
export const SAMPLE = 16;
export const WIDTH = SAMPLE_AT + SAMPLE;

class View {
  state: State = new Float64Array(WIDTH);
  at = 0;
}

NAMES.forEach((name, n) => {
  Object.defineProperty(View.prototype, name, {
    get(this: View) {
      return this.state[this.at + n];
    },
    set(this: View, value: number) {
      this.state[this.at + n] = value;
    },
  });
});

/** A view that `keyAt` moves to a key; it is valid until the next call. */
export const createView = (): Key => new View() as View & Numbers;

export function keyAt(view: Key, state: State, i: number): Key {
  view.state = state;
  view.at = i;
  return view;
}
