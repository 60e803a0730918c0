import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { redisCli, redisServer, type Service } from '../../../test/support/services.ts';
import { type Flow, readFlow } from '../../core/flow.ts';
import { seededRandom } from '../../core/random.ts';
import { FairWaitQueue } from '../../limiter/fair-wait-queue.ts';
import { ORDER_LUA } from './lua-fair-order.ts';

/** Runs `join`, `serve` and `leave` in one call, and returns the head after each. */
const SCRIPT = `
local call, sub, match = redis.call, string.sub, string.match
local function exact(x) return string.format('%.17g', x) end
local function costOf(id) return tonumber(match(id, '([^/]+)$')) end
${ORDER_LUA.fair}
local heads = {}
for n, text in ipairs(ARGV) do
  local op, id, flow = match(text, '(%S+) (%S+) ?(.*)')
  if op == 'join' then join(KEYS[1], id, flow)
  elseif op == 'serve' then serve(KEYS[1], headOf(KEYS[1]))
  else leave(KEYS[1], id) end
  heads[n] = headOf(KEYS[1]) or '-'
end
return heads`;

interface One {
  readonly id: string;
  readonly arrival: number;
  readonly priority: number;
  readonly cost: number;
  readonly flow: Flow | undefined;
}

describe.skipIf(redisServer() === undefined)('fair order in Lua', () => {
  let service: Service;
  beforeAll(async () => {
    service = await borrowRedis();
  });
  afterAll(() => service.stop());

  test.each([1, 2, 3, 4, 5, 6])(
    'random steps %i: the same head as in one process after each',
    (seed) => {
      const random = seededRandom(seed);
      const pick = <T>(...from: T[]): T => from[Math.floor(random() * from.length)];
      let queue = new FairWaitQueue<One>();
      const live: One[] = [];
      const steps: string[] = [];
      const heads: string[] = [];
      const leave = (one: One): void => {
        queue.remove(one);
        live.splice(live.indexOf(one), 1);
        if (live.length === 0) queue = new FairWaitQueue(); // as the scheduler does
      };
      for (let n = 1; n <= 400; n++) {
        const kind = pick(
          'join',
          'join',
          'serve',
          'serve',
          'leave',
          n % 100 < 40 ? 'serve' : 'join',
        );
        const { first } = queue;
        if (kind === 'join' || !first) {
          const tenant = pick(undefined, 't1', 't2');
          const weights = {
            flowWeight: pick(1, 2, 4),
            ...(tenant && { tenantWeight: pick(1, 3) }),
          };
          const flow = readFlow({
            flow: pick('a', 'b', 'c'),
            ...(tenant && { tenant }),
            ...weights,
          });
          const cost = pick(0, 1, 1, 5);
          const one = { id: `p/${n}/${cost}`, arrival: n, priority: 0, cost, flow };
          queue.add(one);
          live.push(one);
          const names = `${flow?.tenant}/${flow?.flow}`;
          steps.push(`join ${one.id} ${names} ${flow?.tenantWeight} ${flow?.flowWeight}`);
        } else if (kind === 'serve') {
          queue.onServed(first);
          leave(first);
          steps.push('serve -');
        } else {
          const one = pick(...live);
          leave(one);
          steps.push(`leave ${one.id}`);
        }
        heads.push(queue.first?.id ?? '-');
      }
      for (const one of [...live]) {
        steps.push(`leave ${one.id}`);
        leave(one);
        heads.push(queue.first?.id ?? '-');
      }
      const output = redisCli(service.port, 'EVAL', SCRIPT, '1', `k${seed}`, ...steps);
      expect(output.split('\n')).toEqual(heads);
      expect(redisCli(service.port, 'KEYS', `k${seed}:*`)).toBe('');
    },
  );
});
