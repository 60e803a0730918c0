import { expect, test } from 'vitest';
import { peerLogger } from './peer-log.ts';

function logOf(...views: string[][]): string[] {
  const lines: string[] = [];
  const logPeers = peerLogger(
    (level, message, { peer } = {}) => void lines.push(`${level} ${message} ${peer}`),
  );
  for (const view of views)
    logPeers(view.map((name, id) => ({ id, name })).filter(({ name }) => name));
  return lines;
}

test('log of peers: one that is back under its name has restarted, one that is not is gone', () => {
  expect(logOf(['a', 'b'], ['a', 'b', 'a'], ['', 'b', 'a'], ['', '', 'a'])).toEqual([
    'info peer found a',
    'info peer found b',
    'info peer found a',
    'info peer has restarted a',
    'warn peer gone b',
  ]);
});

test('log of peers: the last run of a name that goes is gone, and is found again later', () => {
  expect(logOf(['a', 'a'], ['a', ''], ['', ''], ['', '', 'a'])).toEqual([
    'info peer found a',
    'info peer found a',
    'warn peer gone a',
    'warn peer gone a',
    'info peer found a',
  ]);
});
