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

import { alarm, type Clock, isClock, type Millis, systemClock } from '../../core/clock.ts';
import { Ahead } from '../../core/clock-offset.ts';
import type { Duration } from '../../core/duration.ts';
import { Fields } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { type EtcdPlace, readPlace } from '../etcd/endpoints.ts';
import { base64, EtcdHttp, textIn } from '../etcd/transport.ts';
import { type DocumentServer, documentStore } from './cas-store.ts';
import type { PoolStore } from './store.ts';

/** Where etcd is, and how a pool is kept there. */
export interface EtcdStoreOptions extends EtcdPlace {
  /** What the keys of pools begin with. Default `/sluice/pools/`. */
  readonly prefix?: string;
  /** How long a sync may take. Default 500 ms. */
  readonly deadline?: Duration;
  readonly clock?: Clock;
}

/** @throws {ConfigError} if the options make no sense. */
export function etcdStore(options: EtcdStoreOptions): PoolStore {
  const fields = Fields.patient('', options);
  const deadlineMs = fields.duration('deadline', 500);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const prefix = fields.optional('prefix', isText, 'a text') ?? '/sluice/pools/';
  const place = readPlace(fields);
  fields.done();
  const http = new EtcdHttp({ ...place, deadlineMs, clock });
  return documentStore(etcdServer(http, prefix, clock), deadlineMs, clock, systemRandom);
}

function etcdServer(http: EtcdHttp, prefix: string, clock: Clock): DocumentServer {
  const ahead = new Ahead();
  http.onDate = (from, sentAt, heardAt) =>
    ahead.learn({ from, to: from + SECOND_MS }, sentAt, heardAt);
  return {
    name: 'etcd',
    ahead,
    async get(pool) {
      const { kvs } = await http.post('/v3/kv/range', { key: base64(prefix + pool) });
      const [found] = Array.isArray(kvs) ? kvs : [];
      if (!found) return undefined;
      return { text: textIn(found.value), revision: String(found.mod_revision) };
    },
    async put(pool, text, revision) {
      const key = base64(prefix + pool);
      const { succeeded } = await http.post('/v3/kv/txn', {
        compare: [{ key, target: 'MOD', result: 'EQUAL', mod_revision: revision }],
        success: [{ request_put: { key, value: base64(text) } }],
      });
      return succeeded === true;
    },
    async learnTime() {
      await sleep(clock, lookAt(ahead, clock.now()));
      await http.look();
    },
    close: async () => http.close(),
  };
}

const SECOND_MS: Millis = 1000;

/** Who knows the time less well than this waits for the next second to begin, and looks so often. */
const COARSE_MS: Millis = 100;
const LOOK_EVERY_MS: Millis = 5;

/** When a look tells most. */
function lookAt(ahead: Ahead, now: Millis): Millis {
  const { min, max } = ahead.at(now);
  if (!(max - min <= COARSE_MS)) return now + LOOK_EVERY_MS;
  const middle = (min + max) / 2;
  return Math.ceil((now + middle) / SECOND_MS) * SECOND_MS - middle;
}

const sleep = (clock: Clock, until: Millis): Promise<void> =>
  new Promise((wake) => {
    alarm(clock, until, wake, false);
  });

const isText = (value: unknown): value is string => typeof value === 'string';
