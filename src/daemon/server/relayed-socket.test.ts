import { once } from 'node:events';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { RelayedSocket } from './relayed-socket.ts';

/** A socket whose worker is this log. */
function setUp(isTaken = () => true) {
  const log: string[] = [];
  const socket = new RelayedSocket(
    {
      write: (bytes) => {
        log.push(`write ${bytes}`);
        return isTaken();
      },
      pause: () => log.push('pause'),
      resume: () => log.push('resume'),
      end: () => log.push('end'),
      close: () => log.push('close'),
    },
    '10.0.0.1',
  );
  return { socket, log };
}

describe('relayed socket', () => {
  test('client that does not read: writes are pending and counted as unsent until it reads', () => {
    const { socket, log } = setUp();
    socket.write('one');
    socket.block();
    socket.write('two');
    socket.write('three');
    expect(log).toEqual(['write one', 'write two']);
    expect(socket.bytesWritten - socket.writableLength).toBe(3);
    socket.unblock(false); // the worker reads, the client does not
    expect(log).toHaveLength(2);
    socket.unblock(true);
    expect(log).toEqual(['write one', 'write two', 'write three']);
    expect(socket.writableLength).toBe(0);
    expect(socket.bytesWritten).toBe(11);
  });

  test('worker that does not keep up: writes are pending until it does', () => {
    let isTaken = false;
    const { socket, log } = setUp(() => isTaken);
    socket.write('one');
    socket.write('two');
    expect(log).toEqual(['write one']);
    isTaken = true;
    socket.unblock(false);
    expect(log).toEqual(['write one', 'write two']);
  });

  test('paused reader: the worker is paused after 64 KiB, and resumed by reading', async () => {
    const { socket, log } = setUp();
    const chunk = Buffer.alloc(32_768);
    socket.receive(chunk);
    expect(log).toEqual([]);
    socket.receive(chunk);
    expect(log).toEqual(['pause']);
    let received = 0;
    socket.on('data', (bytes: Buffer) => {
      received += bytes.length;
    });
    await expect.poll(() => received).toBe(65_536);
    await expect.poll(() => log).toEqual(['pause', 'resume']);
    expect(socket.bytesRead).toBe(65_536);
  });

  test('end of the client: replies can still be written, and closing sends the end first', async () => {
    const { socket, log } = setUp();
    socket.resume();
    socket.receiveEnd();
    await once(socket, 'end');
    socket.write('reply');
    socket.destroySoon();
    await once(socket, 'close');
    expect(log).toEqual(['write reply', 'end', 'close']);
  });

  test('timeout: counts from the last byte, and 0 turns it off', () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    onTestFinished(() => void vi.useRealTimers());
    const { socket } = setUp();
    let fired = 0;
    socket.on('timeout', () => fired++);
    socket.setTimeout(40);
    for (let n = 0; n < 10; n++) {
      vi.advanceTimersByTime(39);
      socket.receive(Buffer.from('x'));
    }
    expect(fired).toBe(0);
    vi.advanceTimersByTime(40);
    socket.receive(Buffer.from('x')); // starts it again
    vi.advanceTimersByTime(40);
    expect(fired).toBe(2);
    socket.setTimeout(1).setTimeout(0);
    vi.advanceTimersByTime(1000);
    expect(fired).toBe(2);
    socket.destroy();
  });
});
