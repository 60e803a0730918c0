import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { canReuseReadBuffer, reuseReadBuffer } from './read-buffer.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** An accepted socket and its client. */
async function connected(): Promise<{ accepted: Socket; client: Socket }> {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true });
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [accepted] = (await once(server, 'connection')) as [Socket];
  closing.push(
    () => accepted.destroy(),
    () => client.destroy(),
    () => server.close(),
  );
  return { accepted, client };
}

/** The text of all chunks, and the memory that each was in. */
async function readTwice(accepted: Socket, client: Socket) {
  const buffers: ArrayBufferLike[] = [];
  let text = '';
  const socket = reuseReadBuffer(accepted, (chunk) => {
    buffers.push(chunk.buffer);
    text += chunk.toString('latin1');
  });
  socket.resume();
  closing.push(() => socket.destroy());
  for (const sent of ['one', 'onetwo']) {
    client.write(sent.slice(-3));
    await expect.poll(() => text).toBe(sent);
  }
  return { socket, buffers };
}

describe('read buffer', () => {
  test('accepted socket: this Node has the private fields, and all chunks share one buffer', async () => {
    const { accepted, client } = await connected();
    expect(canReuseReadBuffer(accepted)).toBe(true);
    const { socket, buffers } = await readTwice(accepted, client);
    expect(socket).not.toBe(accepted);
    expect(new Set(buffers).size).toBe(1);
    expect(buffers[0].byteLength).toBe(65_536);
  });

  test.each(['readStop', 'useUserBuffer', 'reading'])(
    'Node without `%s`: the buffer cannot be reused',
    async (member) => {
      const { accepted } = await connected();
      const handle = Reflect.get(accepted, '_handle');
      const reduced = new Proxy(handle, {
        get: (target, name) => (name === member ? undefined : target[name]),
      });
      const socket = Object.create(accepted, { _handle: { value: reduced } });
      expect(canReuseReadBuffer(socket)).toBe(false);
    },
  );

  test('Node without `useUserBuffer`: falls back to ordinary reads', async () => {
    const { accepted, client } = await connected();
    Object.defineProperty(Reflect.get(accepted, '_handle'), 'useUserBuffer', { value: undefined });
    const { socket } = await readTwice(accepted, client);
    expect(socket).toBe(accepted);
  });
});
