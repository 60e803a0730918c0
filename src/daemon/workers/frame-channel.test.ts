import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { Frame, FrameChannel } from './frame-channel.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** Both ends of a connection. */
async function socketPair(): Promise<[Socket, Socket]> {
  const server = createServer({ pauseOnConnect: true });
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [[accepted]] = (await Promise.all([
    once(server, 'connection'),
    once(client, 'connect'),
  ])) as [[Socket], unknown];
  closing.push(
    () => accepted.destroy(),
    () => client.destroy(),
    () => server.close(),
  );
  return [accepted, client];
}

interface Received {
  readonly type: number;
  readonly id: number;
  readonly text: string;
}

async function channelPair() {
  const [one, other] = await socketPair();
  const received: Received[] = [];
  const events = { drains: 0, ends: 0 };
  const sender = new FrameChannel(one, {
    onFrame: () => {},
    onDrain: () => events.drains++,
    onEnd: () => {},
  });
  const receiver = new FrameChannel(other, {
    onFrame: (type, id, payload) => received.push({ type, id, text: payload.toString('latin1') }),
    onDrain: () => {},
    onEnd: () => events.ends++,
  });
  closing.push(
    () => sender.destroy(),
    () => receiver.destroy(),
  );
  return { sender, received, events };
}

describe('frame channel', () => {
  test('2,000 random frames of up to 300 KB: arrive whole and in order, the end after them', async () => {
    const { sender, received, events } = await channelPair();
    const random = seededRandom(7);
    const upTo = (max: number): number => Math.floor(random() * max);
    const sent: Received[] = [];
    for (let n = 0; n < 2000; n++) {
      const length = n % 100 === 0 ? upTo(300_000) : upTo(n % 10 === 0 ? 5000 : 100);
      const text = String.fromCharCode(65 + (n % 26), 200).repeat(length / 2);
      const id = upTo(2 ** 32);
      sent.push({ type: Frame.DATA, id, text });
      sender.send(Frame.DATA, id, n % 2 === 0 ? text : Buffer.from(text, 'latin1'), 'latin1');
      if (n % 50 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    sender.end();
    await expect.poll(() => events.ends, { timeout: 10_000 }).toBe(1);
    expect(received.length).toBe(sent.length);
    expect(received.findIndex((frame, n) => frame.text !== sent[n].text)).toBe(-1);
    expect(received.map(({ id }) => id)).toEqual(sent.map(({ id }) => id));
  });

  test('text in UTF-8: its bytes arrive', async () => {
    const { sender, received } = await channelPair();
    sender.send(Frame.DATA, 1, 'Grüße', 'utf8');
    await expect.poll(() => received.length).toBe(1);
    expect(Buffer.from(received[0].text, 'latin1').toString()).toBe('Grüße');
  });

  test('receiver that does not read: the sender is blocked until it does', async () => {
    const [one, other] = await socketPair();
    let drains = 0;
    const ignore = { onFrame: () => {}, onEnd: () => {} };
    const sender = new FrameChannel(one, { ...ignore, onDrain: () => drains++ });
    for (let n = 0; n < 500 && !sender.isBlocked; n++)
      sender.send(Frame.DATA, 1, 'x'.repeat(60_000));
    expect(sender.isBlocked).toBe(true);
    other.resume();
    await expect.poll(() => drains).toBe(1);
    expect(sender.isBlocked).toBe(false);
  });
});
