import { describe, expect, test } from 'vitest';
import { Timeline } from '../timeline.ts';
import { Server } from './server.ts';
import type { LoadResponse, ServerParams } from './suite.ts';

const FREE: LoadResponse = {
  scale: 0,
  kneeStart: undefined,
  kneeExp: 1,
  limit: Infinity,
  action: 'defer',
};

const TENTH: ServerParams = {
  delayS: 0.1,
  jitter: 0,
  failures: 0,
  failuresAfter: 0,
  byConcurrency: FREE,
  byRate: FREE,
};

/** Sends attempts at these milliseconds and records the replies. */
function replies(params: ServerParams, sendAt: readonly number[], later?: [number, ServerParams]) {
  const timeline = new Timeline();
  const server = new Server(params, timeline, () => 0.5);
  const log: string[] = [];
  if (later) timeline.scheduleAfter(later[0], () => server.reconfigure(later[1]));
  for (const at of sendAt) {
    timeline.scheduleAfter(at, () =>
      server.attempt(
        () => true,
        (reply) => log.push(`${at} ${reply} at ${timeline.now}`),
      ),
    );
  }
  while (timeline.runNextInstant());
  return log;
}

describe('simulated server', () => {
  test('two workers: the third attempt is queued', () => {
    expect(replies({ ...TENTH, workers: 2 }, [0, 10, 20, 30])).toEqual([
      '0 ok at 101',
      '10 ok at 111',
      '20 ok at 202', // starts when the first is done
      '30 ok at 212',
    ]);
  });

  test('refuses without queueing', () => {
    const byLevel: LoadResponse = { ...FREE, limit: 2 };
    expect(replies({ ...TENTH, workers: 1, byConcurrency: byLevel }, [0, 1, 2])).toEqual([
      '0 ok at 101',
      '2 deferred at 103',
      '1 ok at 202',
    ]);
  });

  test('refused attempts count towards the rate unless excludesRejected is set', () => {
    const byRate: LoadResponse = { ...FREE, limit: 2 };
    const everyQuarter = [0, 250, 500, 750, 1000, 1250, 1500];
    const refusals = (params: ServerParams) =>
      replies(params, everyQuarter).filter((line) => line.includes('deferred')).length;
    expect(refusals({ ...TENTH, byRate })).toBe(5);
    expect(refusals({ ...TENTH, byRate, excludesRejected: true })).toBe(3);
  });

  test('reconfigure: attempts in progress end with the old parameters', () => {
    const dropAll: LoadResponse = { ...FREE, limit: 0, action: 'drop' };
    const slow = { ...TENTH, delayS: 0.3 };
    expect(replies(TENTH, [0, 60], [50, slow])).toEqual(['0 ok at 101', '60 ok at 361']);
    expect(replies(TENTH, [0, 60], [50, { ...TENTH, byConcurrency: dropAll }])).toEqual([
      '0 ok at 101',
    ]);
  });
});
