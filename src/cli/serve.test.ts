/** What of `sluice serve` a process of its own cannot show; the rest is in test/daemon.test.ts. */

import { afterEach, expect, test } from 'vitest';
import type { Terminal } from './framework/command.ts';
import { serve } from './serve.ts';

const mine = ['SIGHUP', 'SIGTERM', 'SIGINT'] as const;
const before = new Map(mine.map((signal) => [signal, process.listeners(signal)]));

afterEach(() => {
  for (const signal of mine) {
    for (const listener of process.listeners(signal)) {
      if (!before.get(signal)?.includes(listener)) process.off(signal, listener);
    }
  }
});

test.each(['SIGTERM', 'SIGINT'] as const)(
  '%s the instant it says that it is ready ends it in good order',
  async (signal) => {
    const log: string[] = [];
    const heard: boolean[] = [];
    const terminal: Terminal = {
      print(line) {
        if (line === 'ready') heard.push(process.emit(signal));
      },
      error: (line) => log.push(line),
      log: (line) => log.push(line),
      columns: 100,
      version: '0.0.0',
    };
    const args = ['--line', '127.0.0.1:0', '--resp', 'off', '--http', 'off'];
    const ended = serve.run(args, terminal);
    while (heard.length === 0) await new Promise(setImmediate);
    if (!heard[0]) process.emit(signal); // late, so that nothing hangs
    expect(await ended).toBe(0);
    expect(heard).toEqual([true]);
    expect(log.map((line) => line.split(' ').at(-1))).toEqual(['stopping', 'stopped']);
  },
);
