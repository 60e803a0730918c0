/**
 * A pool that daemons divide limits in, as a configuration spells it: where they meet, and the options of
 * `sluice/pool`.
 *
 *     pool:
 *       redis: redis://10.0.0.9:6379                       # or { url, prefix, deadline }
 *       nats: { servers: nats://10.0.0.9:4222, bucket: sluice }
 *       etcd: { endpoints: [http://10.0.0.9:2379] }
 *       size: 3                                            # no store: always so many
 *       environment: { size: PODS, rank: POD_NAME }        # no store: as many as a variable says
 *       dns: pods.internal                                 # no store: as many as a name has addresses
 *       name: enrich
 */

import { dnsPool } from '../../backends/pool/dns-size.ts';
import { type EtcdStoreOptions, etcdStore } from '../../backends/pool/etcd-store.ts';
import type { PoolSetting } from '../../backends/pool/membership.ts';
import { BUCKET_NAMED, isBucket } from '../../backends/pool/nats-bucket.ts';
import type { NatsStoreOptions } from '../../backends/pool/nats-store.ts';
import { readPoolOptions } from '../../backends/pool/options.ts';
import { type RedisStoreOptions, redisStore } from '../../backends/pool/redis-store.ts';
import { fixedPool, poolFromEnvironment } from '../../backends/pool/static-size.ts';
import type { PoolStore } from '../../backends/pool/store.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { readEtcdPlace } from './etcd.ts';
import { readServers } from './peers.ts';
import { NOBODY, readRedisUrl, safe } from './redis.ts';

export type StoreConfig =
  | { readonly kind: 'redis'; readonly url: string; readonly options: RedisStoreOptions }
  | {
      readonly kind: 'nats';
      readonly servers: readonly string[];
      readonly options: NatsStoreOptions;
    }
  /** One that has its own way there, or needs none. @throws {ConfigError} if files cannot be read. */
  | { readonly kind: 'own'; make(): PoolStore };

export interface PoolConfig {
  readonly store: StoreConfig;
  readonly options: PoolSetting;
  /** What was written: a change of it takes a restart. */
  readonly text: string;
}

const STORES = ['redis', 'nats', 'etcd', 'size', 'environment', 'dns'] as const;

/** Reads the section; undefined if there is none. What it holds may be secret, and is not shown. */
export function readPool(value: unknown, path: string): PoolConfig | undefined {
  if (value === undefined || value === false) return undefined;
  const expected = `an object with one of ${STORES.join(', ')}`;
  if (!isRecord(value)) throw new ConfigError(path, expected, 'something else');
  const fields = Fields.patient(path, value);
  const kinds = STORES.filter((kind) => fields.has(kind));
  const options = readPoolOptions(fields, systemRandom);
  const store = fields.attempt(() => {
    const [kind, ...others] = kinds;
    if (kind && others.length === 0) return READ[kind](fields.raw(kind), fields.at(kind));
    throw new ConfigError(path, expected, kinds.join(' and ') || 'none');
  });
  fields.done();
  return { store: store as StoreConfig, options, text: JSON.stringify(value) };
}

/** Made once here, so that what is wrong with it is known now, and again when it is needed. */
function own(path: string, make: () => PoolStore): StoreConfig {
  within(path, make);
  return { kind: 'own', make };
}

/** What is wrong, seen from the whole configuration. */
function within<T>(path: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw error.within(path);
  }
}

const READ: Readonly<
  Record<(typeof STORES)[number], (value: unknown, path: string) => StoreConfig>
> = {
  redis(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { url: safe(value) });
    const url = fields.attempt(() =>
      readRedisUrl(isRecord(value) ? value.url : value, fields.at('url')),
    );
    fields.raw('url');
    const options = written(fields, 'prefix', 'deadline');
    fields.attempt(() => within(path, () => redisStore(NOBODY, options)));
    fields.done();
    return { kind: 'redis', url: url as string, options };
  },
  nats(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { servers: value });
    const servers = readServers(fields);
    // The store would look at these, too, but its package may not be here.
    fields.optional('bucket', isBucket, BUCKET_NAMED);
    if (fields.has('deadline')) fields.duration('deadline');
    const options = written(fields, 'bucket', 'deadline');
    fields.done();
    return { kind: 'nats', servers, options };
  },
  etcd(value, path) {
    const known = ['prefix', 'deadline', 'auth'];
    const make = (options: EtcdStoreOptions) => within(path, () => etcdStore(options));
    const { options, tls } = readEtcdPlace(value, path, known, make);
    return { kind: 'own', make: () => make({ ...options, tls: tls() }) };
  },
  size: (value, path) =>
    own(path.slice(0, path.lastIndexOf('.')), () => fixedPool(value as number)),
  environment(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { size: value });
    const expected = 'the name of a variable';
    const size = fields.required('size', isText, expected);
    const rank = fields.optional('rank', isText, expected);
    fields.done();
    // Of another machine, maybe: what it holds is looked at by who starts.
    const make = () => within(path, () => poolFromEnvironment(size, rank));
    return { kind: 'own', make };
  },
  dns(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { host: value });
    const host = fields.raw('host') as string;
    const setting = written(fields, 'every', 'deadline', 'family');
    const store = fields.attempt(() => own(path, () => dnsPool(host, setting)));
    fields.done();
    return store as StoreConfig;
  },
};

/** Those options of a store that were written, as they were: it reads them itself. */
function written(fields: Fields, ...names: string[]): Record<string, never> {
  const own = names.filter((name) => fields.has(name));
  return Object.fromEntries(own.map((name) => [name, fields.raw(name) as never]));
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';
