import { expect, test } from 'vitest';
import {
  createTestDaemon,
  ProtocolClient,
  respCommand,
} from '../../../test/support/small-daemon.ts';
import { VirtualClock } from '../../testing/index.ts';

const LIMITS = {
  db: { concurrency: 2, match: 'db:*' },
  rpc: { busy: {}, match: 'rpc:*' },
  ceiling: { adaptive: {}, match: '*', always: true, per: 'limit' },
  rate: { bucket: { rate: '1/s' }, match: 'rate:*' },
};

/** A daemon whose reports of limits without permits are recorded, and what its RESP client sends. */
function setUp(limits: object = LIMITS) {
  const daemon = createTestDaemon(new VirtualClock(), { limits });
  const unused: string[] = [];
  daemon.router.permitUse.onUnused = (limit) => unused.push(limit);
  const client = new ProtocolClient(daemon.resp);
  const send = (...args: string[]) => client.send(respCommand(...args)).takeReceived();
  return { send, unused, daemon };
}

test('check without a permit: reports each limit of its route that needs settling, once', () => {
  const { send, unused } = setUp();
  for (let n = 0; n < 3; n++) send('SLUICE.CHECK', '*', `db:${n}`);
  expect(unused).toEqual(['db', 'ceiling']);
  send('SLUICE.CHECK', 'rpc', 'rpc:1');
  expect(unused).toEqual(['db', 'ceiling', 'rpc']);
});

test('check of several limits, and one that waits, without a permit: reported too', () => {
  const joint = setUp();
  joint.send('SLUICE.CHECKALL', 'db', 'db:1', '1', 'rpc', 'rpc:1', '1');
  expect(joint.unused).toEqual(['db', 'ceiling', 'rpc']);
  const waiting = setUp();
  waiting.send('SLUICE.ACQUIRE', 'db', 'db:1', 'WAIT', '10');
  expect(waiting.unused).toEqual(['db', 'ceiling']);
});

test('check without a permit: silent once a permit was taken, for a cost of 0 and for other limits', () => {
  const { send, unused } = setUp({ ...LIMITS, ceiling: { concurrency: 9, match: 'c:*' } });
  send('SLUICE.CHECK', 'db', 'db:1', 'HOLD');
  send('SLUICE.CHECK', 'db', 'db:2');
  send('SLUICE.CHECK', 'rpc', 'rpc:1', '0');
  send('SLUICE.CHECK', 'rate', 'rate:1');
  expect(unused).toEqual([]);
});

test('reload: a limit that is gone is reported again when it comes back, others are not', () => {
  const { send, unused, daemon } = setUp();
  const check = () => send('SLUICE.CHECK', 'db', 'db:1');
  check();
  daemon.router.permitUse.retain([{ name: 'db' }]);
  check();
  expect(unused).toEqual(['db', 'ceiling', 'ceiling']);
});
