/**
 * A limit shared with others through Redis, as a configuration spells it: where Redis is, and the
 * options of `sluice/redis`.
 */

import { type RedisOptions, redis } from '../../backends/redis/options.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';

export interface RedisConfig {
  readonly url: string;
  readonly options: RedisOptions;
}

const URL_SCHEME = /^(redis|rediss|unix):\/\/./;

export function readRedis(value: unknown, path: string): RedisConfig {
  if (!isRecord(value)) throw new ConfigError(path, 'an object with `url`', redactIfUrl(value));
  const fields = OptionReader.collecting(path, value);
  const url = fields.tryRead(() => readRedisUrl(fields.get('url'), fields.pathOf('url')));
  const rest = fields.names().filter((name) => name !== 'url');
  const options = Object.fromEntries(rest.map((name) => [name, fields.get(name)]));
  if (options.fairQueue !== undefined)
    fields.report('fairQueue', 'left out: nobody waits in a daemon');
  fields.tryRead(() => redis(DRY_RUN_CLIENT, options, path)); // so that what is wrong with the options is known now
  fields.finish();
  return { url: url as string, options };
}

export function readRedisUrl(value: unknown, path: string): string {
  if (typeof value === 'string' && URL_SCHEME.test(value)) return value;
  throw new ConfigError(path, 'an address such as redis://127.0.0.1:6379', redactIfUrl(value));
}

/** Without the password it may hold. */
export const redactUrl = (url: string): string => url.replace(/\/\/.*@/s, '//');

export const redactIfUrl = (value: unknown): unknown =>
  typeof value === 'string' ? redactUrl(value) : value;

/** A share that is made to see whether it can be, and never asked. */
export const dryRunRedis = ({ options }: RedisConfig): RemoteBackendFactory =>
  redis(DRY_RUN_CLIENT, options);

/** A client that looks like one and is never asked. */
export const DRY_RUN_CLIENT = {
  sendCommand: () => Promise.reject(new Error('nobody is there')),
  evalSha: () => Promise.reject(new Error('nobody is there')),
};
