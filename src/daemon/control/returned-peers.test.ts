import { expect, test } from 'vitest';
import { ReturnedPeers } from './returned-peers.ts';

test('returned peers: one that was not listed for seconds is back, with the start of its silence', () => {
  const peers = new ReturnedPeers();
  peers.update([1, 2], 0);
  peers.update([1], 1000);
  peers.update([1, 2], 2000); // a second is no silence
  peers.update([1], 3000);
  peers.update([1, 3], 60_000); // this daemon was suspended; 3 is new
  expect(peers.take()).toEqual([[1, 3000]]);
  peers.update([1, 2, 3], 61_000);
  expect(peers.take()).toEqual([[2, 2000]]);
  expect(peers.isEmpty).toBe(true);
});

test('returned peers: daemons are asked before nodes that never sent controls', () => {
  const peers = new ReturnedPeers();
  peers.update([1, 2, 3], 0);
  peers.noteDaemon(3);
  peers.update([1, 2, 3], 10_000);
  expect(peers.take().map(([id]) => id)).toEqual([3, 1, 2]);
});

test('returned peers: a bounded number is remembered', () => {
  const peers = new ReturnedPeers();
  peers.update(
    Array.from({ length: 5000 }, (_, n) => n),
    0,
  );
  peers.update([0, 4999], 10_000);
  expect(peers.take()).toEqual([[4999, 0]]);
});
