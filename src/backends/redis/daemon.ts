import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { DRY_RUN_CLIENT, readRedisUrl, redactIfUrl, redactUrl } from '../connections/server-url.ts';
import type { BackendModule, LimitBackend } from '../daemon-backend.ts';
import { redis } from './index.ts';

const NAME = 'redis';

export const redisModule: BackendModule = { name: NAME, readLimit };

function readLimit(value: unknown, path: string): LimitBackend {
  if (!isRecord(value) && typeof value !== 'string')
    throw new ConfigError(path, 'an address, or an object with `url`', redactIfUrl(value));
  const fields = OptionReader.collecting(path, isRecord(value) ? value : { url: value });
  const url = fields.tryRead(() => readRedisUrl(fields.get('url'), fields.pathOf('url'))) as string;
  const names = fields.names().filter((name) => name !== 'url');
  const options = Object.fromEntries(names.map((name) => [name, fields.get(name)]));
  fields.tryRead(() => redis(DRY_RUN_CLIENT, options, path)); // validates the options
  fields.finish();
  return {
    name: NAME,
    identity: JSON.stringify({ url, options }),
    view: redactUrl(url),
    note: 'shared through Redis',
    servers: [{ field: path, url }],
    dryRun: () => redis(DRY_RUN_CLIENT, options, path),
    create: (connections) => redis(connections.redisClient(url), options, path),
  };
}
