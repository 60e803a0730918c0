/**
 * Measures the daemon compared with other servers.
 *
 *     npm run bench:daemon              with redis-server, medians of three rounds, written to bench/RESULTS.md
 *     npm run bench:daemon -- http      a check over HTTP with a bare Node server, seven rounds, written there too
 *     npm run bench:daemon -- --smoke   a short run, writes nothing
 */

const MEASUREMENTS = { redis: './beside-redis.mjs', http: './http.mjs' };

const [name = 'redis'] = process.argv.slice(2).filter((word) => !word.startsWith('--'));
if (name in MEASUREMENTS) await import(MEASUREMENTS[name]);
else {
  console.error(`expected one of ${Object.keys(MEASUREMENTS).join(', ')}, got "${name}"`);
  process.exitCode = 2;
}
