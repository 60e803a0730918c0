/** Signals at the moment of "ready", which a process of its own cannot test; the rest is in test/daemon.test.ts. */

import { afterEach, expect, test } from 'vitest';
import { BACKENDS } from '../daemon/backends/registry.ts';
import type { Terminal } from './framework/command.ts';
import { serveCommand } from './serve.ts';

const SIGNALS = ['SIGHUP', 'SIGTERM', 'SIGINT'] as const;
const before = new Map(SIGNALS.map((signal) => [signal, process.listeners(signal)]));

afterEach(() => {
  for (const signal of SIGNALS) {
    for (const listener of process.listeners(signal)) {
      if (!before.get(signal)?.includes(listener)) process.off(signal, listener);
    }
  }
});

test.each(['SIGTERM', 'SIGINT'] as const)(
  'sluice serve: %s right after "ready" stops the daemon cleanly',
  async (signal) => {
    const log: string[] = [];
    const handled: boolean[] = [];
    const terminal: Terminal = {
      print(line) {
        if (line === 'ready') handled.push(process.emit(signal));
      },
      error: (line) => log.push(line),
      log: (line) => log.push(line),
      columns: 100,
      version: '0.0.0',
    };
    const args = ['--line', '127.0.0.1:0', '--resp', 'off', '--http', 'off'];
    const ended = serveCommand(BACKENDS).run(args, terminal);
    while (handled.length === 0) await new Promise(setImmediate);
    if (!handled[0]) process.emit(signal); // too late for the test, but it does not hang
    expect(await ended).toBe(0);
    expect(handled).toEqual([true]);
    expect(log.map((line) => line.split(' ').at(-1))).toEqual(['stopping', 'stopped']);
  },
);
