/**
 * A limit shared with others through Redis, as a configuration spells it: where Redis is, and the
 * options of `sluice/redis`.
 */

import { type RedisOptions, redis } from '../../backends/redis/backend.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';

export interface RedisConfig {
  readonly url: string;
  readonly options: RedisOptions;
}

const URL_START = /^(redis|rediss|unix):\/\/./;

export function readRedis(value: unknown, path: string): RedisConfig {
  if (!isRecord(value)) throw new ConfigError(path, 'an object with `url`', safe(value));
  const fields = Fields.patient(path, value);
  const url = fields.attempt(() => readRedisUrl(fields.raw('url'), fields.at('url')));
  const rest = fields.names().filter((name) => name !== 'url');
  const options = Object.fromEntries(rest.map((name) => [name, fields.raw(name)]));
  if (options.fair !== undefined) fields.complain('fair', 'left out: nobody waits in a daemon');
  fields.attempt(() => redis(NOBODY, options, path)); // so that what is wrong with the options is known now
  fields.done();
  return { url: url as string, options };
}

export function readRedisUrl(value: unknown, path: string): string {
  if (typeof value === 'string' && URL_START.test(value)) return value;
  throw new ConfigError(path, 'an address such as redis://127.0.0.1:6379', safe(value));
}

/** Without the password it may hold. */
export const safeUrl = (url: string): string => url.replace(/\/\/.*@/s, '//');

export const safe = (value: unknown): unknown =>
  typeof value === 'string' ? safeUrl(value) : value;

/** A share that is made to see whether it can be, and never asked. */
export const trial = ({ options }: RedisConfig): RemoteShareMaker => redis(NOBODY, options);

/** A client that looks like one and is never asked. */
export const NOBODY = {
  sendCommand: () => Promise.reject(new Error('nobody is there')),
  evalSha: () => Promise.reject(new Error('nobody is there')),
};
