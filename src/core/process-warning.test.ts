import { expect, test, vi } from 'vitest';
import { emitProcessWarning } from './process-warning.ts';

test('emitProcessWarning: the bound holds for each code, not for all together', () => {
  const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
  try {
    for (let n = 0; n < 150; n++) emitProcessWarning('LISTENER', 'threw', `subject ${n}`);
    expect(emit).toHaveBeenCalledTimes(100);
    emitProcessWarning('POOL', 'unavailable');
    emitProcessWarning('POOL', 'unavailable');
    expect(emit).toHaveBeenCalledTimes(101);
  } finally {
    emit.mockRestore();
  }
});

test('emitProcessWarning: control characters of a foreign text are escaped', () => {
  const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
  try {
    emitProcessWarning('REJECTED', 'ERR \u001b[2J\u202eabc');
    expect(emit.mock.lastCall?.[0]).toBe('ERR \\u001b[2J\\u202eabc');
  } finally {
    emit.mockRestore();
  }
});
