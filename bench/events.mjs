/**
 * The cost of event listeners per decision: an allowed call, a denied call, and check plus settle of a concurrency limit.
 *
 *     npm run bench:events              lowest of seven rounds, written to bench/RESULTS.md
 *     npm run bench:events -- --smoke   a short run, writes nothing
 *
 * Each listener runs in its own process, so that JIT optimisation for one does not affect another. The lowest of all
 * rounds counts: other load on the machine can only add to it.
 */

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { limiter } from 'sluice';
import { machineLine, row, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 5 : 200;
const BATCH = 1024;
const SETTLED = { willSettle: true };

const listeners = {
  'no listener': () => {},
  'an empty listener': (api) => api.on(() => {}),
  'prometheus()': async (api) => (await import('sluice/metrics')).prometheus(api),
  'logLimiting()': async (api) => (await import('sluice/metrics')).logLimiting(api, { warn() {} }),
  'instrument(), no SDK': async (api) => (await import('sluice/opentelemetry')).instrument(api),
  'instrument(), with the SDK': async (api) => {
    const { MeterProvider, MetricReader } = await import('@opentelemetry/sdk-metrics');
    class Reader extends MetricReader {
      async onForceFlush() {}
      async onShutdown() {}
    }
    const meter = new MeterProvider({ readers: [new Reader()] }).getMeter('bench');
    return (await import('sluice/opentelemetry')).instrument(api, { meter });
  },
};

const calls = {
  allowed: () => {
    const api = limiter({ limit: { bucket: { rate: 1e9, burst: 1e12 } } });
    return { api, call: () => api.check('alice') };
  },
  denied: () => {
    const api = limiter({ limit: { bucket: { rate: '1/d', burst: 1 } } });
    return { api, call: () => api.check('alice') };
  },
  'concurrency, check and settle': () => {
    const api = limiter({ limit: { concurrency: 10 } });
    return {
      api,
      call() {
        api.check('alice', 1, SETTLED);
        api.settle('alice', { rttMs: 12 });
      },
    };
  },
};

/** Nanoseconds per call. */
function cost(call) {
  let done = 0;
  const start = performance.now();
  let now = start;
  for (; now < start + SPAN_MS; now = performance.now()) {
    for (let n = 0; n < BATCH; n++) call();
    done += BATCH;
  }
  return ((now - start) * 1e6) / done;
}

async function measure(listener, kind) {
  const { api, call } = calls[kind]();
  await listeners[listener](api);
  cost(call); // warm up
  return cost(call);
}

const [, , flag, ...one] = process.argv;
if (flag === '--one') {
  console.log(await measure(...one));
  process.exit(0);
}

const self = fileURLToPath(import.meta.url);
const size = smoke ? ['--smoke'] : [];
const run = (listener, kind) =>
  Number(execFileSync(process.execPath, [self, '--one', listener, kind, ...size]));
const kinds = Object.keys(calls);
const names = Object.keys(listeners);
const lowest = names.map(() => kinds.map(() => Infinity));
for (let round = 0; round < ROUNDS; round++) {
  for (const [n, name] of names.entries()) {
    for (const [k, kind] of kinds.entries()) {
      lowest[n][k] = Math.min(lowest[n][k], run(name, kind));
    }
  }
}
const rows = names.map((name, n) => row([name, ...lowest[n].map((ns) => `${Math.round(ns)} ns`)]));
const table = [row(['', ...kinds]), row(['---', ...kinds.map(() => '---:')]), ...rows].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'Event listeners',
    `Nanoseconds per call, with one limiter and one key. The lowest of ${ROUNDS} processes each, in
one run of \`npm run bench:events\`; ${machineLine()}.

${table}`,
  );
}
