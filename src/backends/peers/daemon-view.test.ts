import { expect, test } from 'vitest';
import { peersPage } from './daemon-view.ts';

test('peers page: failed and dropped datagrams are counted among the sent ones', () => {
  const view = {
    ...{ name: 'a', transport: 'udp', isOpen: true, peers: [], authFailed: 4 },
    ...{ version: 3, versions: { oldest: 3, newest: 3 }, otherKey: 2, rejected: [] },
    counts: {
      reports: 5,
      sent: 9,
      sentBytes: 900,
      protocolErrors: 0,
      otherVersion: 5,
      duplicates: 1,
      unknownLimits: 0,
    },
    transportCounts: { sent: 9, received: 7, failed: 2, dropped: 3 },
  };
  expect(peersPage.render(view).slice(2)).toEqual([
    '  sent 5 reports in 9 datagrams, 900 bytes: 2 failed, 3 dropped',
    '  received 7 datagrams: 4 auth failed, 5 of another version, 2 with another key, 1 duplicate',
  ]);
});
