/**
 * Pool store in etcd.
 *
 *     const pods = pool(etcdStore({ endpoints: ['http://etcd:2379'] }), { name: 'enrich' });
 *
 * Each pool is one key (`cas-store.ts`), read and written by one `range` and one `txn` as JSON over HTTP
 * (`backends/etcd/transport.ts`).
 *
 * etcd revisions contain no time, but every HTTP response has a `Date`: the server's clock in whole seconds. Where two
 * responses differ, the second began between them. So the first sync polls until a second begins, for up to 1 s. After
 * that, each probe at the middle of the uncertainty halves it (bisection):
 *
 *     uncertain   ├───────────────┤           the next second begins somewhere here
 *     probe               ▲                   it has begun: ├───────┤ remains, else the other half
 */

import { type Clock, isClock, type Millis, schedule, systemClock } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import type { Duration } from '../../core/duration.ts';
import { OptionReader } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { type EtcdConnectionOptions, readConnectionOptions } from '../etcd/endpoints.ts';
import { EtcdHttp, fromBase64, toBase64 } from '../etcd/transport.ts';
import { type CasServer, casStore } from './cas-store.ts';
import type { PoolStore } from './store.ts';

/** Options of `etcdStore`. */
export interface EtcdStoreOptions extends EtcdConnectionOptions {
  /** Prefix of the keys of pools. Default `/sluice/pools/`. */
  readonly prefix?: string | undefined;
  /** Deadline of a sync. Default 500 ms. */
  readonly deadline?: Duration | undefined;
  readonly clock?: Clock | undefined;
}

/** Creates a store in etcd. @throws {ConfigError} if an option is invalid. */
export function etcdStore(options: EtcdStoreOptions): PoolStore {
  const reader = OptionReader.collecting('', options);
  const deadlineMs = reader.duration('deadline', 500);
  const clock = reader.optional('clock', isClock, 'a clock') ?? systemClock;
  const prefix = reader.optional('prefix', isString, 'a string') ?? '/sluice/pools/';
  const connection = readConnectionOptions(reader);
  reader.finish();
  const http = new EtcdHttp({ ...connection, deadlineMs, clock });
  return casStore(etcdCasServer(http, prefix, clock), deadlineMs, clock, systemRandom);
}

function etcdCasServer(http: EtcdHttp, prefix: string, clock: Clock): CasServer {
  const clockOffset = new ClockOffset();
  http.onServerDate = (from, sentAt, heardAt) =>
    clockOffset.observe({ from, to: from + SECOND_MS }, sentAt, heardAt);
  return {
    name: 'etcd',
    clockOffset,
    async get(pool) {
      const { kvs } = await http.post('/v3/kv/range', { key: toBase64(prefix + pool) });
      const [found] = Array.isArray(kvs) ? kvs : [];
      if (!found) return undefined;
      return { text: fromBase64(found.value), revision: String(found.mod_revision) };
    },
    async put(pool, text, revision) {
      const key = toBase64(prefix + pool);
      const { succeeded } = await http.post('/v3/kv/txn', {
        compare: [{ key, target: 'MOD', result: 'EQUAL', mod_revision: revision }],
        success: [{ request_put: { key, value: toBase64(text) } }],
      });
      return succeeded === true;
    },
    async measureClock() {
      await sleepUntil(clock, nextProbeAt(clockOffset, clock.now()));
      await http.pollServerDate();
    },
    close: async () => http.close(),
  };
}

const SECOND_MS: Millis = 1000;

/** Above this uncertainty, the clock is polled at a fixed interval until a second begins. */
const COARSE_UNCERTAINTY_MS: Millis = 100;
const PROBE_INTERVAL_MS: Millis = 5;

/** The time at which a probe narrows the bounds most. */
function nextProbeAt(clockOffset: ClockOffset, now: Millis): Millis {
  const { min, max } = clockOffset.boundsAt(now);
  if (!(max - min <= COARSE_UNCERTAINTY_MS)) return now + PROBE_INTERVAL_MS;
  const middle = (min + max) / 2;
  return Math.ceil((now + middle) / SECOND_MS) * SECOND_MS - middle;
}

const sleepUntil = (clock: Clock, until: Millis): Promise<void> =>
  new Promise((wake) => {
    schedule(clock, until, wake, false);
  });

const isString = (value: unknown): value is string => typeof value === 'string';
