/** Hits that the state of a source includes and that its reports carry as well: each counts once, in any order. */

import { describe, expect, test } from 'vitest';
import { type Node, network } from '../../../test/support/protocol-network.ts';
import { BROADCAST, type Message } from './messages.ts';

const BUCKET = { rate: '1/h', burst: 10 } as const;

const remaining = ({ backend }: Node): number =>
  Math.round(backend.inspect('C').state.remaining * 100) / 100;

describe.each(['eager', 'periodic'] as const)(
  'peers: two nodes that start together (%s)',
  (exchange) => {
    const moments = Array.from({ length: 160 }, (_, ms) => ms);
    /** Units that the younger node has left, for 8 hits on the older one at any moment after the start. */
    function remainingAfterHits(rules: Partial<ReturnType<typeof network>['rules']>): number[] {
      return moments.map((ms) => {
        const world = network();
        const { start, pass } = world;
        Object.assign(world.rules, rules);
        const older = start({ exchange }, BUCKET);
        pass(2);
        const younger = start({ exchange }, BUCKET);
        pass(ms);
        for (let n = 0; n < 8; n++) older.backend.check('C', 1);
        pass(900); // less than the interval of anti-entropy
        expect(remaining(older)).toBe(2);
        return remaining(younger);
      });
    }
    const ALL_ONCE = moments.map(() => 2);

    test('count hits once that are served before they are reported', () => {
      expect(remainingAfterHits({ delayMs: () => 1 })).toEqual(ALL_ONCE);
    });

    test('count hits once if the first report is late, and the state is faster', () => {
      const delayMs = ({ kind }: Message): number => (kind === 'report' ? 40 : 1);
      expect(remainingAfterHits({ delayMs })).toEqual(ALL_ONCE);
    });

    test('count hits once if the state is faster than all other datagrams', () => {
      const delayMs = ({ kind }: Message): number => (kind === 'state' ? 1 : 7);
      expect(remainingAfterHits({ delayMs })).toEqual(ALL_ONCE);
    });

    test('count hits once if the report is lost and sent again', () => {
      const isCarried = ({ kind, to }: Message): boolean => kind !== 'report' || to !== BROADCAST;
      expect(remainingAfterHits({ isCarried })).toEqual(ALL_ONCE);
    });
  },
);
