import { EventEmitter } from 'node:events';
import { expect, test, vi } from 'vitest';
import { createLog } from '../../core/log.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { logWorkerWarning, sendWarnings } from './worker-warnings.ts';

test('worker: its process warnings are lines of the daemon log with its pid, and Node prints none', () => {
  const source = new EventEmitter();
  const printedByNode = vi.fn();
  source.on('warning', printedByNode);
  const lines: string[] = [];
  const format = { format: 'json', level: 'info' } as const;
  const log = createLog(
    (line) => lines.push(line),
    () => format,
    new VirtualClock(),
  );
  sendWarnings(source, (message) => logWorkerWarning(log, 7, JSON.parse(JSON.stringify(message))));
  source.emit('warning', Object.assign(new Error('a\nb'), { code: 'DEP0005' }));
  source.emit('warning', Object.assign(new Error('old'), { name: 'DeprecationWarning' }));
  expect(printedByNode).not.toHaveBeenCalled();
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { level: 'warn', message: 'process warning', pid: 7, code: 'DEP0005', reason: 'a\nb' },
    { level: 'warn', message: 'process warning', code: 'DeprecationWarning', reason: 'old' },
  ]);
});
