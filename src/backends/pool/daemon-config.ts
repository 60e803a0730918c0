/**
 * The section `pool` of a configuration: how the size of the pool is agreed on, and the options of `sluice/pool`.
 *
 *     pool:
 *       redis: redis://10.0.0.9:6379                       # or { url, prefix, deadline }
 *       nats: { servers: nats://10.0.0.9:4222, bucket: sluice }
 *       etcd: { endpoints: [http://10.0.0.9:2379] }
 *       size: 3                                            # no store: a fixed size
 *       environment: { size: PODS, rank: POD_NAME }        # no store: the size from a variable
 *       dns: pods.internal                                 # no store: the number of addresses of a name
 *       name: enrich
 */

import {
  isNonEmptyString,
  readOnlyField,
  secretSection,
  withConfigPath,
} from '../../core/config-helpers.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { DRY_RUN_CLIENT, readNatsServers, readRedisServer } from '../connections/server-url.ts';
import { readEtcdSection } from '../etcd/daemon.ts';
import { dnsPool } from './dns-size.ts';
import { type EtcdStoreOptions, etcdStore } from './etcd-store.ts';
import { BUCKET_NAME_EXPECTED, isBucketName } from './nats-bucket.ts';
import type { NatsStoreOptions } from './nats-store.ts';
import { readPoolOptions } from './options.ts';
import type { ResolvedPoolOptions } from './pool.ts';
import { type RedisStoreOptions, redisStore } from './redis-store.ts';
import { fixedPool, poolFromEnvironment } from './static-size.ts';
import type { PoolStore } from './store.ts';

export type StoreConfig =
  | { readonly kind: 'redis'; readonly url: string; readonly options: RedisStoreOptions }
  | {
      readonly kind: 'nats';
      readonly servers: readonly string[];
      readonly options: NatsStoreOptions;
    }
  /** A store that opens its own connection or needs no server. @throws {ConfigError} if files cannot be read. */
  | { readonly kind: 'standalone'; create(): PoolStore };

export interface PoolConfig {
  readonly store: StoreConfig;
  readonly options: ResolvedPoolOptions;
}

/** Reads the section. Its values may be secret, so errors omit them. */
export function readPoolConfig(value: unknown, path: string): PoolConfig {
  const expected = `an object with one of ${Object.keys(STORE_READERS).join(', ')}`;
  const fields = secretSection(path, value, expected);
  const store = readOnlyField(fields, STORE_READERS);
  const options = readPoolOptions(fields, systemRandom);
  fields.finish();
  return { store: store as StoreConfig, options };
}

/** Creates the store once here to validate its options, and again when it is needed. */
function validatedStore(path: string, create: () => PoolStore): StoreConfig {
  withConfigPath(path, create);
  return { kind: 'standalone', create };
}

const STORE_READERS: Readonly<Record<string, (value: unknown, path: string) => StoreConfig>> = {
  redis(value, path) {
    const { url, fields } = readRedisServer(value, path);
    const options = presentOptions(fields, 'prefix', 'deadline');
    fields.tryRead(() => withConfigPath(path, () => redisStore(DRY_RUN_CLIENT, options)));
    fields.finish();
    return { kind: 'redis', url, options };
  },
  nats(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { servers: value });
    const servers = readNatsServers(fields);
    // The store also validates these, but its package may be missing.
    fields.optional('bucket', isBucketName, BUCKET_NAME_EXPECTED);
    if (fields.has('deadline')) fields.duration('deadline');
    const options = presentOptions(fields, 'bucket', 'deadline');
    fields.finish();
    return { kind: 'nats', servers, options };
  },
  etcd(value, path) {
    const known = ['prefix', 'deadline', 'auth'];
    const create = (options: EtcdStoreOptions) => withConfigPath(path, () => etcdStore(options));
    const { options, loadTls } = readEtcdSection(value, path, known, create);
    return { kind: 'standalone', create: () => create({ ...options, tls: loadTls() }) };
  },
  size: (value, path) =>
    validatedStore(path.slice(0, path.lastIndexOf('.')), () => fixedPool(value as number)),
  environment(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { size: value });
    const expected = 'the name of a variable';
    const size = fields.required('size', isNonEmptyString, expected);
    const rank = fields.optional('rank', isNonEmptyString, expected);
    fields.finish();
    // The variable may exist on another machine only, so it is read on start and not by `config check`.
    const create = () => withConfigPath(path, () => poolFromEnvironment(size, rank));
    return { kind: 'standalone', create };
  },
  dns(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { host: value });
    const host = fields.get('host') as string;
    const options = presentOptions(fields, 'every', 'deadline', 'family');
    const store = fields.tryRead(() => validatedStore(path, () => dnsPool(host, options)));
    fields.finish();
    return store as StoreConfig;
  },
};

/** The given options, which the store validates. */
function presentOptions(fields: OptionReader, ...names: string[]): Record<string, never> {
  const present = names.filter((name) => fields.has(name));
  return Object.fromEntries(present.map((name) => [name, fields.get(name) as never]));
}
