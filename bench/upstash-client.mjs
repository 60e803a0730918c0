/**
 * A node-redis client with the interface that @upstash/ratelimit expects of its own.
 *
 * Its scripts begin with a flag that only Upstash's servers know: the line is left out here.
 */

import { createHash } from 'node:crypto';

export function upstashClient(client) {
  /** The digest of the original script ─▶ that of the script here. */
  const digests = new Map();
  const run = (sha, keys, args) => client.evalSha(sha, { keys, arguments: args.map(String) });
  return {
    async evalsha(digest, keys, args) {
      const sha = digests.get(digest);
      if (sha === undefined) throw new Error('NOSCRIPT');
      return run(sha, keys, args);
    },
    async eval(script, keys, args) {
      const sha = await client.scriptLoad(script.replace(/^#!lua.*\n/, ''));
      digests.set(createHash('sha1').update(script).digest('hex'), sha);
      return run(sha, keys, args);
    },
  };
}
