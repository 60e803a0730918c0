import { afterEach, expect, test } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';
import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { VirtualClock } from '../../testing/index.ts';
import { operatorKeyOf } from './control-auth.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const TOKEN = 'the-token-of-the-operator';
const DAY = 86_400_000;
const configOf = (token: string | undefined): string => `
${token === undefined ? '' : `admin: { token: ${token} }`}
peers: { udp: '127.0.0.1:7613' }
limits:
  shared: { bucket: { rate: 1/h, burst: 20 } }
  local: { bucket: { rate: 1/h, burst: 5 }, peers: false, match: 'local:*' }`;

/** Daemons with these tokens, on a network without delay; `sent` has every message. */
async function fleet(...tokens: readonly (string | undefined)[]) {
  const clock = new VirtualClock(1_700_000_000_000);
  const channels: FleetChannel[] = [];
  const sent: string[] = [];
  const daemons: Awaited<ReturnType<typeof start>>[] = [];
  const join = async (token: string | undefined, state = `${channels.length}`) => {
    const id = channels.length;
    const others = (): number[] => [...channels.keys()].filter((other) => other !== id);
    const channel: FleetChannel = {
      onText: undefined,
      peers: others,
      nameOf: (peer) => `n${peer}`,
      send(text, to) {
        sent.push(text);
        for (const other of others())
          if (to === undefined || to === other) channels[other].onText?.(text, id);
      },
    };
    channels.push(channel);
    let isStarted = false;
    const starting = start(configOf(token), clock, state, undefined, channel).finally(() => {
      isStarted = true;
    });
    while (!isStarted) {
      await new Promise<void>((resolve) => setImmediate(resolve)); // files are read
      if (channels.length > 1) clock.advance(10); // a peer may not reply
    }
    const daemon = await starting;
    daemons.push(daemon);
    return daemon;
  };
  for (const token of tokens) await join(token);
  return { clock, channels, daemons, join, sent };
}

const peerLines = ({ lines }: { readonly lines: readonly string[] }): string[] =>
  lines.filter((line) => /controls? of (a peer|peers)/.test(line));

test('controls of a peer: accepted with the same admin token, and logged with the sender', async () => {
  const { daemons } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  const ban = a.controls.ban({ key: 'eve', for: '1h' });
  expect(a.controls.sharingProblemOf(ban)).toBeUndefined();
  a.controls.override({ key: 'zoe', rate: '30/h', for: '1h' });
  expect([b.isAllowed('eve'), b.count('zoe')]).toEqual([false, 30]);
  b.controls.unban({ key: 'eve' });
  expect(a.isAllowed('eve')).toBe(true);
  expect(peerLines(b)).toEqual([
    expect.stringMatching(/^info control of a peer accepted peer=n0 kind=ban key=eve until=2023/),
    expect.stringMatching(
      /^info control of a peer accepted peer=n0 kind=override key=zoe limit=shared/,
    ),
  ]);
  expect(peerLines(a)).toEqual([
    'info control of a peer accepted peer=n1 kind=ban key=eve removed=true',
  ]);
});

test.each([
  ['another admin token', 'another-token-of-others', 'not signed with the admin token'],
  ['no admin token', undefined, 'no admin.token'],
])(
  'controls of a peer: rejected by a daemon with %s, and logged once',
  async (_, token, reason) => {
    const { daemons, clock } = await fleet(TOKEN, token);
    const [a, b] = daemons;
    a.controls.ban({ key: 'eve', for: '1h' });
    await clock.advanceAsync(20_000);
    expect(b.isAllowed('eve')).toBe(true);
    expect(peerLines(b)).toEqual([expect.stringContaining('rejected peer=n0 kind=ban key=eve')]);
    expect(peerLines(b)[0]).toContain(reason);
    const own = b.controls.ban({ key: 'mallory', for: '1h' });
    expect(b.controls.sharingProblemOf(own)).toEqual(
      token === undefined ? expect.stringContaining('the same admin.token') : undefined,
    );
    expect(a.isAllowed('mallory')).toBe(true);
  },
);

test('controls of a peer: what was set under a token that has been changed is no longer accepted', async () => {
  const { daemons, join } = await fleet(TOKEN);
  const [a] = daemons;
  a.controls.ban({ key: 'eve', for: '1h' });
  const changed = 'the-next-token-of-the-operator';
  await a.reload(configOf(changed));
  const b = await join(changed);
  expect([a.isAllowed('eve'), b.isAllowed('eve')]).toEqual([false, true]);
  a.controls.ban({ key: 'eve', for: '1h' });
  expect(b.isAllowed('eve')).toBe(false);
});

test('controls of a peer: a recorded message that is sent again after a day is rejected', async () => {
  const { daemons, clock, channels, sent } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  a.controls.ban({ key: 'eve', for: '1h' });
  const recorded = sent.find((text) => text.includes('eve')) ?? '';
  clock.advance(DAY + 1);
  expect(b.isAllowed('eve')).toBe(true);
  channels[1].onText?.(recorded, 7);
  expect(b.isAllowed('eve')).toBe(true);
  expect(peerLines(b).at(-1)).toContain('rejected peer=n7 kind=ban key=eve');
});

test('controls of a peer: act in no limit that peers do not share', async () => {
  const { daemons, channels } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  const override = a.controls.override({ key: 'local:1', rate: '9/h', for: '1h' });
  expect(a.controls.sharingProblemOf(override)).toContain('do not share limit local');
  expect([a.count('local:1'), b.count('local:1')]).toEqual([9, 5]);

  a.controls.ban({ key: 'local:*', for: '1h' });
  expect([a.isAllowed('local:2'), b.isAllowed('local:2')]).toEqual([false, true]);
  expect((await b.check('local:2', 'shared'))?.decision.verdict).toBe('deny');

  a.controls.unban({ key: 'local:*' });
  b.count('local:3');
  await a.controls.reset({ key: 'local:3' });
  expect(b.count('local:3')).toBe(0);
  b.count('zoe');
  await a.controls.reset({ key: 'zoe' });
  expect(b.count('zoe')).toBe(20);

  const key = operatorKeyOf(TOKEN); // a daemon that shares the limit
  const now = a.clock.now();
  const record = { kind: 'override', key: 'local:4', limit: 'local', until: now + DAY, setAt: now };
  const rule = { bucket: { rate: '9/h', burst: 9 } };
  channels[1].onText?.(key.sign(JSON.stringify([{ now }, { ...record, rule }])), 0);
  expect(b.count('local:4')).toBe(5);
  expect(peerLines(b).at(-1)).toContain('reason="peers do not share its limit here"');
});

test('ban: of the own operator holds in limits that peers do not share, beside and after one of a peer', async () => {
  const { daemons } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  b.controls.ban({ key: 'local:*', for: '1h' });
  a.controls.ban({ key: 'local:1', for: '1h' });
  a.controls.ban({ key: 'local:1*', for: '1h' });
  expect(b.isAllowed('local:1')).toBe(false);
  a.controls.ban({ key: 'local:*', for: '2h' });
  expect(b.isAllowed('local:1')).toBe(false);
});

test('controls of a peer: a restart keeps in which limits they act', async () => {
  const { daemons, join } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  a.controls.ban({ key: 'local:*', for: '1h' });
  await a.stop();
  await b.stop();
  const again = await join(TOKEN, '1');
  expect(again.controls.list()).toHaveLength(1);
  expect(again.isAllowed('local:1')).toBe(true);
});

test('controls of a peer: log lines are bounded in each minute, and the rest is counted', async () => {
  const { daemons, channels } = await fleet(TOKEN, TOKEN);
  const [a, b] = daemons;
  const now = a.clock.now();
  for (let n = 0; n < 50; n++) {
    a.controls.ban({ key: `user:${n}`, for: '1h' });
    const forged = { kind: 'ban', key: `forged:${n}`, until: now + DAY, setAt: now };
    channels[1].onText?.(JSON.stringify([{ now }, forged]), 9);
  }
  expect(peerLines(b)).toHaveLength(40);
  a.clock.advance(60_000);
  expect(peerLines(b).slice(40)).toEqual([
    'info more controls of peers accepted controls=30',
    'warn more controls of peers rejected controls=30',
  ]);
});
