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
import type { ResolvedPoolOptions } from '../../backends/pool/membership.ts';
import { BUCKET_NAME_EXPECTED, isBucketName } from '../../backends/pool/nats-bucket.ts';
import type { NatsStoreOptions } from '../../backends/pool/nats-store.ts';
import { readPoolOptions } from '../../backends/pool/options.ts';
import { type RedisStoreOptions, redisStore } from '../../backends/pool/redis-store.ts';
import { fixedPool, poolFromEnvironment } from '../../backends/pool/static-size.ts';
import type { PoolStore } from '../../backends/pool/store.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { readEtcdSection } from './etcd.ts';
import { readNatsServers } from './peers.ts';
import { DRY_RUN_CLIENT, readRedisUrl, redactIfUrl } from './redis.ts';

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
  readonly options: ResolvedPoolOptions;
  /** What was written: a change of it takes a restart. */
  readonly source: string;
}

const STORE_KINDS = ['redis', 'nats', 'etcd', 'size', 'environment', 'dns'] as const;

/** Reads the section; undefined if there is none. What it holds may be secret, and is not shown. */
export function readPool(value: unknown, path: string): PoolConfig | undefined {
  if (value === undefined || value === false) return undefined;
  const expected = `an object with one of ${STORE_KINDS.join(', ')}`;
  if (!isRecord(value)) throw new ConfigError(path, expected, 'something else');
  const fields = OptionReader.collecting(path, value);
  const kinds = STORE_KINDS.filter((kind) => fields.has(kind));
  const options = readPoolOptions(fields, systemRandom);
  const store = fields.tryRead(() => {
    const [kind, ...others] = kinds;
    if (kind && others.length === 0)
      return STORE_READERS[kind](fields.get(kind), fields.pathOf(kind));
    throw new ConfigError(path, expected, kinds.join(' and ') || 'none');
  });
  fields.finish();
  return { store: store as StoreConfig, options, source: JSON.stringify(value) };
}

/** Made once here, so that what is wrong with it is known now, and again when it is needed. */
function validatedStore(path: string, make: () => PoolStore): StoreConfig {
  withConfigPath(path, make);
  return { kind: 'own', make };
}

/** What is wrong, seen from the whole configuration. */
function withConfigPath<T>(path: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw error.prefixedWith(path);
  }
}

const STORE_READERS: Readonly<
  Record<(typeof STORE_KINDS)[number], (value: unknown, path: string) => StoreConfig>
> = {
  redis(value, path) {
    const fields = OptionReader.collecting(
      path,
      isRecord(value) ? value : { url: redactIfUrl(value) },
    );
    const url = fields.tryRead(() =>
      readRedisUrl(isRecord(value) ? value.url : value, fields.pathOf('url')),
    );
    fields.get('url');
    const options = presentOptions(fields, 'prefix', 'deadline');
    fields.tryRead(() => withConfigPath(path, () => redisStore(DRY_RUN_CLIENT, options)));
    fields.finish();
    return { kind: 'redis', url: url as string, options };
  },
  nats(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { servers: value });
    const servers = readNatsServers(fields);
    // The store would look at these, too, but its package may not be here.
    fields.optional('bucket', isBucketName, BUCKET_NAME_EXPECTED);
    if (fields.has('deadline')) fields.duration('deadline');
    const options = presentOptions(fields, 'bucket', 'deadline');
    fields.finish();
    return { kind: 'nats', servers, options };
  },
  etcd(value, path) {
    const known = ['prefix', 'deadline', 'auth'];
    const make = (options: EtcdStoreOptions) => withConfigPath(path, () => etcdStore(options));
    const { options, loadTls } = readEtcdSection(value, path, known, make);
    return { kind: 'own', make: () => make({ ...options, tls: loadTls() }) };
  },
  size: (value, path) =>
    validatedStore(path.slice(0, path.lastIndexOf('.')), () => fixedPool(value as number)),
  environment(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { size: value });
    const expected = 'the name of a variable';
    const size = fields.required('size', isNonEmptyString, expected);
    const rank = fields.optional('rank', isNonEmptyString, expected);
    fields.finish();
    // Of another machine, maybe: what it holds is looked at by who starts.
    const make = () => withConfigPath(path, () => poolFromEnvironment(size, rank));
    return { kind: 'own', make };
  },
  dns(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { host: value });
    const host = fields.get('host') as string;
    const setting = presentOptions(fields, 'every', 'deadline', 'family');
    const store = fields.tryRead(() => validatedStore(path, () => dnsPool(host, setting)));
    fields.finish();
    return store as StoreConfig;
  },
};

/** Those options of a store that were written, as they were: it reads them itself. */
function presentOptions(fields: OptionReader, ...names: string[]): Record<string, never> {
  const own = names.filter((name) => fields.has(name));
  return Object.fromEntries(own.map((name) => [name, fields.get(name) as never]));
}

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';
