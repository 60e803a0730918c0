/**
 * What it costs a decision that somebody watches: a call allowed, a call denied, and a call of a limit
 * that learns, from ask to settle.
 *
 *     npm run bench:events              the least of seven rounds, a part of bench/RESULTS.md
 *     npm run bench:events -- --smoke   a moment, writes nothing
 *
 * Each contender runs in a process of its own, so that nobody is slowed down by what the engine has
 * learnt about another's listeners. The least of all rounds counts: whatever else a machine does at the
 * time only ever adds to it.
 */

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { limiter } from 'sluice';
import { machineLine, row, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 5 : 200;
const BATCH = 1024;

const watchers = {
  'nobody watches': () => {},
  'a listener that does nothing': (api) => api.on(() => {}),
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
  'learning, ask and settle': () => {
    const api = limiter({ limit: { concurrency: 10 } });
    return {
      api,
      call() {
        api.check('alice');
        api.settle('alice', { rttMs: 12 });
      },
    };
  },
};

/** Nanoseconds a call. */
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

async function measure(watcher, kind) {
  const { api, call } = calls[kind]();
  await watchers[watcher](api);
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
const run = (watcher, kind) =>
  Number(execFileSync(process.execPath, [self, '--one', watcher, kind, ...size]));
const kinds = Object.keys(calls);
const names = Object.keys(watchers);
const least = names.map(() => kinds.map(() => Infinity));
for (let round = 0; round < ROUNDS; round++) {
  for (const [w, watcher] of names.entries()) {
    for (const [k, kind] of kinds.entries()) {
      least[w][k] = Math.min(least[w][k], run(watcher, kind));
    }
  }
}
const rows = names.map((name, w) => row([name, ...least[w].map((ns) => `${Math.round(ns)} ns`)]));
const table = [row(['', ...kinds]), row(['---', ...kinds.map(() => '---:')]), ...rows].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'What watching costs',
    `Nanoseconds a call, with one limiter and one key. The least of ${ROUNDS} processes each, in
one run of \`npm run bench:events\`; ${machineLine()}.

${table}`,
  );
}
