import { expect, test } from 'vitest';
import { peersPage } from './daemon-view.ts';

const counts = {
  reports: 5,
  sent: 9,
  sentBytes: 900,
  protocolErrors: 0,
  otherVersion: 5,
  duplicates: 1,
  unknownLimits: 0,
};

const view = {
  ...{ name: 'a', transport: 'udp', isOpen: true, peers: [], gone: [], authFailed: 4 },
  ...{ version: 3, versions: { oldest: 3, newest: 3 }, otherKey: 2, rejected: [] },
  counts,
  transportCounts: { sent: 9, received: 7, failed: 2, dropped: 3 },
};

test('peers page: failed and dropped datagrams are counted among the sent ones', () => {
  expect(peersPage.render(view).slice(2)).toEqual([
    '  sent 5 reports in 9 datagrams, 900 bytes: 2 failed, 3 dropped',
    '  received 7 datagrams: 4 auth failed, 5 of another version, 2 with another key, 1 duplicate',
  ]);
});

test('peers page: a peer that is gone is listed with the age of its last datagram', () => {
  const counted = { id: 1, version: 3, reportsReceived: 5, missing: 0, lost: 0 };
  const shown = peersPage.render({ ...view, gone: [{ ...counted, name: 'b', ageMs: 12_345 }] });
  expect(shown.slice(1, 4)).toEqual([
    '  no other daemon is present',
    '  gone, as no datagram came within the peer timeout:',
    [
      ['peer', 'last datagram'],
      ['b', '12.3 s ago'],
    ],
  ]);
});
