/** Reads addresses of Redis and NATS servers from a configuration. Messages never contain their passwords. */

import { isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';

const REDIS_URL = /^(redis|rediss|unix):\/\/./;

const MAX_SERVERS = 64;

export function readRedisUrl(value: unknown, path: string): string {
  if (typeof value === 'string' && REDIS_URL.test(value)) return value;
  throw new ConfigError(path, 'an address such as redis://127.0.0.1:6379', redactIfUrl(value));
}

/** Reads `redis://…` or `{ url: redis://…, … }`; the caller reads the other options and calls `finish`. */
export function readRedisServer(
  value: unknown,
  path: string,
): { readonly url: string; readonly fields: OptionReader } {
  const given = isRecord(value) ? value : { url: redactIfUrl(value) };
  const fields = OptionReader.collecting(path, given);
  fields.get('url');
  const written = isRecord(value) ? value.url : value;
  const url = fields.tryRead(() => readRedisUrl(written, fields.pathOf('url')));
  return { url: url as string, fields };
}

/** Reads `servers`: one NATS address or a list of them. */
export function readNatsServers(fields: OptionReader): readonly string[] {
  const given = fields.get('servers');
  const servers = Array.isArray(given) ? given : [given];
  fields.tryRead(() => {
    const isInBounds = servers.length > 0 && servers.length <= MAX_SERVERS;
    if (isInBounds && servers.every(isNonEmptyString)) return;
    throw new ConfigError(fields.pathOf('servers'), 'addresses such as nats://127.0.0.1:4222', '…');
  });
  return servers;
}

/** The URL without user and password. */
export const redactUrl = (url: string): string => url.replace(/\/\/.*@/s, '//');

export const redactIfUrl = (value: unknown): unknown =>
  typeof value === 'string' ? redactUrl(value) : value;

const rejectDryRun = () => Promise.reject(new Error('dry run: no server is connected'));

/** A Redis client for limits and stores that only validate their options. */
export const DRY_RUN_CLIENT = { sendCommand: rejectDryRun, evalSha: rejectDryRun };
