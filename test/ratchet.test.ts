/**
 * The size of the repository may only shrink: each number of test/ratchet.json is an upper bound, and lowers itself.
 * CONTRIBUTING.md says how to raise one. `call-trace.system.test.ts` counts the files that a check enters.
 */

import { test } from 'vitest';
import { countsOf } from './support/ratchet/counts.ts';
import { bytecodeCounts } from './support/ratchet/hot-path.ts';
import { goneCounts, holdRatchet, readRatchet, tableOf } from './support/ratchet/ratchet.ts';
import { readRepository } from './support/ratchet/repository.ts';

test('ratchet: no number of test/ratchet.json has grown', async () => {
  const ratchet = readRatchet();
  const { texts, untracked } = readRepository();
  const isRecordedNode = process.versions.node.split('.')[0] === String(ratchet.node);
  const counted = countsOf(texts);
  const counts = [
    ...counted,
    ...goneCounts('source lines: ', counted, ratchet),
    ...(isRecordedNode ? await bytecodeCounts() : []),
  ];
  try {
    holdRatchet(counts, untracked);
  } finally {
    console.log(tableOf(counts, readRatchet()));
  }
});
