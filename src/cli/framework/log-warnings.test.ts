import { EventEmitter } from 'node:events';
import { expect, test, vi } from 'vitest';
import { createLog } from '../../core/log.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { logWarnings } from './log-warnings.ts';

test('daemon log: a process warning is one line with its code, and Node prints none', () => {
  const source = new EventEmitter();
  const printedByNode = vi.fn();
  source.on('warning', printedByNode);
  const lines: string[] = [];
  const log = createLog(
    (line) => lines.push(line),
    () => ({ format: 'json', level: 'info' }),
    new VirtualClock(),
  );
  logWarnings(source, log);
  const code = 'SLUICE_EXPIRED_PERMIT';
  source.emit('warning', Object.assign(new Error('a permit for key "a\nb" expired'), { code }));
  source.emit('warning', Object.assign(new Error('old'), { name: 'DeprecationWarning' }));
  expect(printedByNode).not.toHaveBeenCalled();
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { level: 'warn', message: 'process warning', code, reason: 'a permit for key "a\nb" expired' },
    { level: 'warn', message: 'process warning', code: 'DeprecationWarning', reason: 'old' },
  ]);
});
