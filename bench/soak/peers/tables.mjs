/** The figures of a run as tables. */

import { percent, table, whole } from '../../report.mjs';

const seconds = (ms) => (ms === Infinity ? 'never' : `${(ms / 1000).toFixed(1)} s`);

/** Calls in the fullest window, the same for one central bucket, and the bound. */
const peak =
  (windowMs) =>
  ({ windows }) => {
    const window = windows.find((candidate) => candidate.windowMs === windowMs);
    return window
      ? `${whole(window.calls)} of ${whole(window.bucket)}, ≤ ${whole(window.bound)}`
      : '';
  };

const LIMIT = {
  phase: ({ name }) => name,
  duration: ({ seconds: lasted }) => `${lasted.toFixed(0)} s`,
  admitted: ({ admitted, seconds: lasted }) => `${(admitted / lasted).toFixed(1)}/s`,
  'peak 1 s': peak(1000),
  'peak 10 s': peak(10_000),
  'peak 60 s': peak(60_000),
  overshoot: ({ overshoot, bound }) => `${whole(overshoot)}, ≤ ${whole(bound)}`,
  utilisation: ({ utilisation }) => percent(utilisation),
  'node fairness': ({ fairNodes }) => fairNodes.toFixed(2),
  'converged after': ({ convergedAfterMs }) => seconds(convergedAfterMs),
};

const NETWORK = {
  phase: ({ name }) => name,
  repaired: ({ repaired }) => whole(repaired),
  lost: ({ lost }) => whole(lost),
  'missing at the end': ({ missing }) => whole(missing),
  'datagrams/s per node': ({ datagramsPerSecond }) => whole(datagramsPerSecond),
  'bytes/s per node': ({ bytesPerSecond }) => whole(bytesPerSecond),
  'spread of levels (median)': ({ medianSpread }) => medianSpread.toFixed(1),
  'replies p99, slowest': ({ usualMs, slowestMs }) => `${whole(usualMs)}, ${whole(slowestMs)} ms`,
  X: ({ withinMs }) => `${whole(withinMs)} ms`,
  'no reply': ({ unanswered, calls }) => percent(unanswered / calls),
};

export const tablesOf = (results) =>
  [
    table(LIMIT, results),
    table(NETWORK, results),
    results
      .filter(({ observation }) => observation)
      .map(({ name, observation }) => `- ${name}: ${observation}`)
      .join('\n'),
  ].join('\n\n');
