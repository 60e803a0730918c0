/** The figures of a run as tables. */

import { percent, table, whole } from '../../report.mjs';

const seconds = (ms) => (ms === Infinity ? 'not yet' : `${(ms / 1000).toFixed(1)} s`);

/** Calls in the fullest window, what one bucket lets through in it, and the bound. */
const worst =
  (windowMs) =>
  ({ windows }) => {
    const window = windows.find((own) => own.windowMs === windowMs);
    return window
      ? `${whole(window.calls)} of ${whole(window.bucket)}, ≤ ${whole(window.bound)}`
      : '';
  };

const LIMIT = {
  act: ({ name }) => name,
  lasted: ({ seconds: own }) => `${own.toFixed(0)} s`,
  'let through': ({ admitted, seconds: own }) => `${(admitted / own).toFixed(1)}/s`,
  'worst 1 s': worst(1000),
  'worst 10 s': worst(10_000),
  'worst 60 s': worst(60_000),
  excess: ({ excess, bound }) => `${whole(excess)}, ≤ ${whole(bound)}`,
  utilisation: ({ utilisation }) => percent(utilisation),
  'fair nodes': ({ fairNodes }) => fairNodes.toFixed(2),
  'alike after': ({ alikeAfterMs }) => seconds(alikeAfterMs),
};

const NETWORK = {
  act: ({ name }) => name,
  repaired: ({ repaired }) => whole(repaired),
  lost: ({ lost }) => whole(lost),
  'missing at the end': ({ missing }) => whole(missing),
  'datagrams/s a node': ({ datagramsPerSecond }) => whole(datagramsPerSecond),
  'bytes/s a node': ({ bytesPerSecond }) => whole(bytesPerSecond),
  'nodes differ by (median)': ({ differMedian }) => differMedian.toFixed(1),
  'answers p99, slowest': ({ usualMs, slowestMs }) => `${whole(usualMs)}, ${whole(slowestMs)} ms`,
  X: ({ withinMs }) => `${whole(withinMs)} ms`,
  'not answered': ({ unanswered, asked }) => percent(unanswered / asked),
};

export const tablesOf = (results) =>
  [
    table(LIMIT, results),
    table(NETWORK, results),
    results
      .filter(({ seen }) => seen)
      .map(({ name, seen }) => `- ${name}: ${seen}`)
      .join('\n'),
  ].join('\n\n');
