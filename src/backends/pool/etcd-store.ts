/**
 * A pool in etcd.
 *
 *     const pods = pool(etcdStore({ endpoints: ['http://etcd:2379'] }), { name: 'enrich' });
 *
 * Each pool is one key (`backends/pool/cas-store.ts`). etcd is spoken to as JSON over HTTP (`backends/etcd/transport.ts`), since all that is
 * needed is one `range` and one `txn`.
 *
 * etcd keeps no time with a revision. But every answer over HTTP has a `Date`: the server's clock in whole
 * seconds. When it says another second than in the answer before, that second began between the two. So the
 * first sync looks until it sees one begin, for up to a second; from then on one look, aimed at the middle of when
 * the next one may begin, halves what is not known.
 *
 *     unsure      ├───────────────┤           the next second begins somewhere here
 *     look                ▲                   it has begun: then here ├───────┤ is left, else the other half
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

/** Where etcd is, and how a pool is kept there. */
export interface EtcdStoreOptions extends EtcdConnectionOptions {
  /** What the keys of pools begin with. Default `/sluice/pools/`. */
  readonly prefix?: string;
  /** How long a sync may take. Default 500 ms. */
  readonly deadline?: Duration;
  readonly clock?: Clock;
}

/** @throws {ConfigError} if the options make no sense. */
export function etcdStore(options: EtcdStoreOptions): PoolStore {
  const fields = OptionReader.collecting('', options);
  const deadlineMs = fields.duration('deadline', 500);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const prefix = fields.optional('prefix', isString, 'a text') ?? '/sluice/pools/';
  const place = readConnectionOptions(fields);
  fields.finish();
  const http = new EtcdHttp({ ...place, deadlineMs, clock });
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

/** Who knows the time less well than this waits for the next second to begin, and looks so often. */
const COARSE_UNCERTAINTY_MS: Millis = 100;
const PROBE_INTERVAL_MS: Millis = 5;

/** When a look tells most. */
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
