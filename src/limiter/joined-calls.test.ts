import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../testing/index.ts';
import { all } from './composite-limiter.ts';
import { limiter } from './limiter.ts';

const LIMIT = { bucket: { rate: '1/s', burst: 1 } } as const;

describe.each(['limiter', 'all'])('acquire with an id that joins a waiting call (%s)', (kind) => {
  async function stage() {
    const clock = new VirtualClock();
    const alone = limiter({ limit: LIMIT, clock });
    const api = kind === 'all' ? all([{ limiter: alone }]) : alone;
    await api.acquire('k');
    const aborts = [new AbortController(), new AbortController()];
    const calls = aborts.map(({ signal }) => api.acquire('k', 1, { id: 'x', signal }));
    const ended = calls.map((call) => call.then(({ verdict }) => verdict, String));
    return { clock, alone, aborts, ended };
  }

  test.each([0, 1])('the abort of caller %i leaves the other waiting', async (n) => {
    const { clock, alone, aborts, ended } = await stage();
    aborts[n].abort('enough');
    expect(await ended[n]).toBe('enough');
    expect(alone.stats().waiting).toBe(1);
    await clock.advanceAsync(1000);
    expect(await ended[1 - n]).toBe('allow');
  });

  test('the abort of both callers ends the call', async () => {
    const { clock, alone, aborts, ended } = await stage();
    for (const abort of aborts) abort.abort('enough');
    expect(await Promise.all(ended)).toEqual(['enough', 'enough']);
    await clock.advanceAsync(0);
    expect(alone.stats().waiting).toBe(0);
  });
});
