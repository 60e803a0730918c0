/**
 * A pool in etcd.
 *
 *     const pods = pool(etcdStore({ endpoints: ['http://etcd:2379'] }), { name: 'enrich' });
 *
 * Each pool is one key (`share/pool/document.ts`). etcd is spoken to as JSON over HTTP (`etcd-http.ts`), since all that is
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

import { alarm, type Clock, isClock, type Millis, systemClock } from '../clock.ts';
import type { Duration } from '../duration.ts';
import { ConfigError } from '../errors.ts';
import { Fields, isRecord } from '../options.ts';
import { systemRandom } from '../random.ts';
import { Ahead } from '../share/pool/ahead.ts';
import { type DocumentServer, documentStore } from '../share/pool/document.ts';
import type { PoolStore } from '../share/pool/store.ts';
import { EtcdHttp, type EtcdTls } from './etcd-http.ts';

export interface EtcdStoreSetting {
  /** Servers of one cluster, such as `https://etcd-0:2379`: the first is asked until it fails, then the next. */
  readonly endpoints: readonly string[];
  /** What the keys of pools begin with. Default `/sluice/pools/`. */
  readonly prefix?: string;
  /** How long a sync may take. Default 500 ms. */
  readonly deadline?: Duration;
  readonly auth?: { readonly name: string; readonly password: string };
  readonly tls?: EtcdTls;
  readonly clock?: Clock;
}

const ENDPOINTS_MAX = 20;

/** @throws {ConfigError} if the options make no sense. */
export function etcdStore(setting: EtcdStoreSetting): PoolStore {
  const fields = new Fields('', setting);
  const deadlineMs = fields.duration('deadline', 500);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const prefix = fields.optional('prefix', isText, 'a text') ?? '/sluice/pools/';
  const auth = readAuth(fields);
  const tls = readTls(fields);
  const endpoints = readEndpoints(fields);
  fields.done();
  const http = new EtcdHttp({ endpoints, deadlineMs, clock, auth, tls });
  return documentStore(etcdServer(http, prefix, clock), deadlineMs, clock, systemRandom);
}

/** What is wrong with it is not shown: it may be a password. */
function readAuth(fields: Fields): EtcdStoreSetting['auth'] {
  const auth = fields.raw('auth');
  if (auth === undefined || isAuth(auth)) return auth;
  throw new ConfigError('auth', '{ name, password }', 'something else');
}

/** A certificate under a misspelt name would be none. */
function readTls(fields: Fields): EtcdTls | undefined {
  const given = fields.optional('tls', isRecord, '{ ca, cert, key }');
  if (!given) return undefined;
  const tls = new Fields('tls', given);
  for (const name of ['ca', 'cert', 'key']) tls.raw(name);
  tls.done();
  return given;
}

function readEndpoints(fields: Fields): URL[] {
  const given = fields.raw('endpoints');
  const isList = Array.isArray(given) && given.length > 0 && given.length <= ENDPOINTS_MAX;
  if (!isList) fields.fail('endpoints', `1 to ${ENDPOINTS_MAX} addresses`);
  return given.map((text: unknown, n) => {
    const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined;
    if (url && /^https?:$/.test(url.protocol)) return url;
    const shown = typeof text === 'string' ? text.replace(/\/\/.*@/s, '//') : text;
    throw new ConfigError(`endpoints[${n}]`, 'an address such as http://etcd:2379', shown);
  });
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
      const text = Buffer.from(String(found.value ?? ''), 'base64').toString();
      return { text, revision: String(found.mod_revision) };
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

const base64 = (text: string): string => Buffer.from(text).toString('base64');

const isText = (value: unknown): value is string => typeof value === 'string';

const isAuth = (value: unknown): value is { name: string; password: string } =>
  isRecord(value) && isText(value.name) && isText(value.password);
