/**
 * The parts of a build that are measured, by the folder of its package. Commits before the first release have other names;
 * a part that a build lacks is undefined.
 */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const packageOf = (folder) => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));

async function entryOf(folder, name) {
  const target = packageOf(folder).exports[name];
  return target ? import(pathToFileURL(join(folder, target.default))) : {};
}

/** The command `sluice`. */
export const programOf = (folder) => join(folder, packageOf(folder).bin.sluice);

export async function libraryOf(folder) {
  const { limiter, throttle, all } = await entryOf(folder, '.');
  const { redis } = await entryOf(folder, './redis');
  return {
    throttle,
    all,
    limiter({ maxKeys, ...options }) {
      if (maxKeys === undefined) return limiter(options);
      try {
        return limiter({ ...options, maxKeys });
      } catch {
        return limiter({ ...options, keysMax: maxKeys });
      }
    },
    /** A limiter through Redis. */
    remoteLimiter(options, client, redisOptions) {
      const backend = redis(client, redisOptions);
      try {
        return limiter({ ...options, backend });
      } catch {
        return limiter({ ...options, share: backend });
      }
    },
    /** The function that checks a key. */
    checkOf: (own) => (own.check ? (key) => own.check(key) : (key) => own.ask(key)),
  };
}

/** `rateLimit` of the middleware for a framework. */
export async function middlewareOf(folder, framework) {
  const { rateLimit } = await entryOf(folder, `./${framework}`);
  return rateLimit ?? (await entryOf(folder, './http'))[framework];
}
