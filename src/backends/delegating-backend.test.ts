import { expect, test } from 'vitest';
import { createHasher } from '../core/hash.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import type { Backend } from './backend.ts';
import { DelegatingBackend } from './delegating-backend.ts';
import { LocalBackend } from './local/backend.ts';

const clock = new VirtualClock(1_000_000);
const hasher = createHasher([1, 2]);

const local = (burst: number): Backend => {
  const policy = createPolicy({ bucket: { rate: '1/h', burst } }, seededRandom(1));
  return new LocalBackend(policy, { clock, maxKeys: 1000, random: seededRandom(7), hasher });
};
const delegating = (burst: number): Backend => new DelegatingBackend(local(burst));
const twice = (burst: number): Backend => new DelegatingBackend(delegating(burst));

test.each([
  { from: 'delegating', before: delegating, to: 'delegating', after: delegating },
  { from: 'local', before: local, to: 'delegating twice', after: twice },
  { from: 'delegating twice', before: twice, to: 'local', after: local },
])(
  'copyFrom, $from to $to backend: takes keys and memory, keeps what was consumed',
  ({ before, after }) => {
    const source = before(10);
    for (let n = 0; n < 100; n++) source.check(`key-${n}`, 4);
    source.prepareCopy?.();
    const target = after(15);
    expect(target.copyFrom?.(source, true)).toBe(true);
    for (let n = 0; n < 100; n++) expect(target.takeUpTo(`key-${n}`, Infinity)).toBe(11);
    expect([source.keys, target.keys]).toEqual([0, 100]);
  },
);
