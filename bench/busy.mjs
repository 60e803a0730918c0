/**
 * The busy limit against a service that replies busy, beside TChannel's two steps taken literally.
 *
 *     npm run figures:busy                   virtual time: RTT × rate × length of the overload; then a real HTTP server
 *     npm run figures:busy -- --quick        fewer cells, no server
 *     npm run figures:busy -- --write        all; writes docs/reference/limits.md and docs/pictures/busy-overload.svg
 *
 * Exit code 1 if more than two calls a second were sent into a service that was busy throughout, or if recovery took
 * longer than six seconds.
 */

import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { seededRandom } from '../dist/core/random.js';
import { busy, busyRule } from '../dist/policies/busy.js';
import {
  countBetween,
  INTERVAL_MS,
  mostInASecond,
  recoverySeconds,
  simulateBusy,
} from '../dist/simulator/busy.js';
import { drawPanels } from './real-servers/panels.mjs';
import { isToWrite, madeBy, percent, table, whole, writeFigures } from './report.mjs';

const isQuick = process.argv.includes('--quick');
const writes = isToWrite(!isQuick);

const RTTS = isQuick ? [50] : [1, 10, 50, 200, 400, 1000];
const RATES = isQuick ? [100, 1000] : [10, 100, 1000, 5000, 50_000];
const SPELLS = isQuick ? [0.1, 10] : [0.1, 1, 10, 100];
const HEALTHY_S = 5;
const AFTER_S = 30;

/** The steps of TChannel as its document has them: every busy reply halves the limit, every second it grows fourfold. */
function literal() {
  const rule = busyRule({});
  let [limit, second, sent, halvings] = [rule.max, 0, 0, 0];
  const roll = (now) => {
    const gap = Math.floor(now / 1000) - second;
    if (gap <= 0) return;
    second += gap;
    limit = Math.min(rule.max, rule.grow(limit, gap));
    sent = halvings = 0;
  };
  return {
    width: 1,
    init() {},
    check(_state, _i, cost, now) {
      roll(now);
      if (sent + cost > Math.floor(limit + 1e-9)) return { verdict: 'deny' };
      sent += cost;
      return { verdict: 'allow' };
    },
    settle(_state, _i, { outcome }, now) {
      roll(now);
      if (outcome !== 'busy' || halvings++ >= 20) return;
      limit = rule.halve(limit, 1);
    },
    keyState: () => ({ limit }),
  };
}

const RULES = { sluice: () => busy({}), literal };

/** A service that is busy throughout, from `HEALTHY_S` on. */
function overload(create, rps, rtt, spell) {
  const [from, to] = [HEALTHY_S, HEALTHY_S + spell];
  const run = simulateBusy({
    policy: create(),
    seconds: to + (rps > 5000 ? 10 : AFTER_S),
    rps: () => rps,
    rttMs: () => rtt,
    isBusy: (at) => at >= from * 1000 && at < to * 1000,
  });
  const most = spell > 3 ? mostInASecond(run.sent, from + 2, to) : 0;
  return { run, rps, rtt, spell, most, recovery: recoverySeconds(run, to) };
}

/** A service that takes a part of the traffic. */
function partly(create, isBusy) {
  const rps = () => 5000;
  const run = simulateBusy({ policy: create(), seconds: 60, rps, rttMs: () => 50, isBusy });
  const [offered, sent, refused] = [run.offered, run.sent, run.busy].map((counts) =>
    countBetween(counts, 5, 60),
  );
  return { sent: sent / offered, taken: (sent - refused) / 55, refused: refused / sent };
}

const taking = (perSecond) => {
  const burst = perSecond / 10;
  let [tokens, filledAt] = [burst, 0];
  return (at) => {
    tokens = Math.min(burst, tokens + ((at - filledAt) * perSecond) / 1000);
    filledAt = at;
    if (tokens < 1) return true;
    tokens--;
    return false;
  };
};

const randomly = (share) => {
  const random = seededRandom(3);
  return () => random() < share;
};

const seconds = (value) => `${value.toFixed(1)} s`;
const range = (values) => {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return least === most ? seconds(most) : `${least.toFixed(1)} to ${seconds(most)}`;
};

function simulated() {
  const cells = RATES.flatMap((rps) =>
    RTTS.flatMap((rtt) =>
      SPELLS.map((spell) => ({
        ...overload(RULES.sluice, rps, rtt, spell),
        run: undefined,
      })),
    ),
  );
  // Ten calls a second are too few to measure a recovery of a second.
  const recoveries = (spell) =>
    cells.filter((cell) => cell.spell === spell && cell.rps >= 100).map(({ recovery }) => recovery);
  const atRtt = table(
    {
      'round trip': ({ rtt }) => `${rtt} ms`,
      'sent a second while busy, at most': ({ rtt }) =>
        whole(Math.max(...cells.filter((cell) => cell.rtt === rtt).map(({ most }) => most))),
      ...Object.fromEntries(
        SPELLS.map((spell) => [
          `90 % again after ${spell} s`,
          ({ rtt }) =>
            range(
              cells
                .filter((cell) => cell.rtt === rtt && cell.spell === spell && cell.rps >= 100)
                .map(({ recovery }) => recovery),
            ),
        ]),
      ),
    },
    RTTS.map((rtt) => ({ rtt })),
  );
  return { cells, recoveries, atRtt };
}

function compared() {
  const rows = [
    [
      'sent a second while busy for 10 s, RTT 400 ms, at most',
      (create) => whole(overload(create, 5000, 400, 10).most),
    ],
    ...SPELLS.map((spell) => [
      `90 % again after an overload of ${spell} s, RTT 50 ms`,
      (create) => {
        const { recovery } = overload(create, 5000, 50, spell);
        return recovery >= AFTER_S ? `not in ${AFTER_S} s` : seconds(recovery);
      },
    ]),
    [
      '1 % of the replies busy at random: sent',
      (create) => percent(partly(create, randomly(0.01)).sent),
    ],
    ...[3000, 1000, 100].map((capacity) => [
      `service takes ${whole(capacity)} of 5,000/s: used`,
      (create) => {
        const { taken, refused } = partly(create, taking(capacity));
        return `${percent(taken / capacity)}; ${percent(refused, 0)} of the calls refused`;
      },
    ]),
  ];
  return table(
    {
      '5,000 calls/s offered': ([name]) => name,
      'TChannel, literally': ([, measure]) => measure(RULES.literal),
      '`busy`': ([, measure]) => measure(RULES.sluice),
    },
    rows,
  );
}

/** Four overloads at a round trip of 400 ms: what is sent in each tenth of a second. */
function picture() {
  const LAST_S = 28;
  const panels = SPELLS.slice(0, 4).map((spell) => {
    const shown = Math.min(spell, 10);
    const { run, recovery } = overload(RULES.sluice, 5000, 400, spell);
    // The long overload is shown by its last seconds.
    const from = HEALTHY_S + spell - shown - 3;
    const points = (counts) =>
      Array.from({ length: (LAST_S - 6) * 10 }, (_, n) => [
        n / 10,
        (counts[Math.round(from * 10) + n] ?? 0) * (1000 / INTERVAL_MS),
      ]);
    const markers = [
      ...(spell > shown ? [] : [{ at: 3, name: 'busy' }]),
      { at: 3 + shown, name: 'healthy' },
    ];
    return {
      title: `Busy for ${spell} s`,
      caption: `90 % of the traffic ${recovery.toFixed(1)} s after the overload`,
      markers,
      x: { label: 's', from: 0, to: LAST_S - 6 },
      rows: [
        {
          height: 150,
          y: { label: 'calls/s', from: 0, to: 10_000, scale: 'log' },
          series: [
            { name: 'offered', style: 'shade', points: points(run.offered) },
            { name: 'sent', style: 'bars', points: points(run.sent) },
          ],
        },
      ],
    };
  });
  return drawPanels({
    title: 'A busy limit on virtual time: 5,000 calls/s, round trip 400 ms',
    panels,
    notes: [
      'Of the overload of 100 s the last 13 s',
      'are shown. A single call in a tenth of a',
      'second is drawn as 10 calls/s.',
    ],
  });
}

const REAL = { rttMs: 400, callsPerSecond: 200, busyS: 10, healthyS: 4, maxS: 40 };

/** A real server that replies after 400 ms, 503 for ten seconds; real calls through the library. */
async function real() {
  const startedAt = performance.now();
  const now = () => (performance.now() - startedAt) / 1000;
  const busyTo = REAL.healthyS + REAL.busyS;
  const isBusy = () => now() >= REAL.healthyS && now() < busyTo;
  const server = createServer((_request, response) => {
    const status = isBusy() ? 503 : 200;
    setTimeout(() => response.writeHead(status).end(), REAL.rttMs);
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  const url = `http://127.0.0.1:${server.address().port}`;
  const refused = new Response(null, { status: 299 });
  const api = limiter({ limit: { busy: {} } });
  const call = throttleFetch(fetch, { limiter: api, wait: false, onDeny: () => refused });

  const sent = new Float64Array(REAL.maxS * 10);
  const offered = new Float64Array(REAL.maxS * 10);
  const pending = new Set();
  const endS = busyTo + 12;
  for (let n = 0; n < endS * REAL.callsPerSecond; n++) {
    const dueS = n / REAL.callsPerSecond;
    if (dueS > now()) await sleep((dueS - now()) * 1000);
    const interval = Math.floor(now() * 10);
    if (interval >= offered.length) break;
    offered[interval]++;
    const done = call(url)
      .then((response) => {
        if (response === refused) return;
        sent[interval]++;
        return response.arrayBuffer();
      })
      .finally(() => pending.delete(done));
    pending.add(done);
  }
  await Promise.all(pending);
  server.closeAllConnections();
  await new Promise((closed) => server.close(closed));
  return {
    first: countBetween(sent, REAL.healthyS, REAL.healthyS + 1),
    most: mostInASecond(sent, REAL.healthyS + 2, busyTo),
    total: countBetween(sent, REAL.healthyS + 2, busyTo),
    recovery: recoverySeconds({ offered: offered.subarray(0, endS * 10), sent }, busyTo),
  };
}

const { cells, atRtt } = simulated();
const most = Math.max(...cells.map((cell) => cell.most));
const slowest = Math.max(...cells.map(({ recovery }) => recovery));
const comparison = compared();
console.log(`${atRtt}\n\n${comparison}\n`);
if (most > 2 || slowest > 6) {
  console.log(`expected at most 2 calls a second and 6 s, got ${most} and ${slowest} s`);
  process.exitCode = 1;
}

if (!isQuick) {
  const live = await real();
  const sentence = `A real server on loopback that replies after ${REAL.rttMs} ms, with 503 for ${REAL.busyS} s, and \`throttleFetch\` with ${REAL.callsPerSecond} calls per second: ${whole(live.first)} calls were sent in the
first second of the overload. From the third second on they were ${whole(live.total)}, at most ${whole(live.most)} in a second. 90 % of the traffic was sent again ${seconds(live.recovery)} after the overload.`;
  console.log(sentence);
  if (writes && process.exitCode !== 1) {
    const made = madeBy('npm run figures:busy');
    writeFigures('docs/reference/limits.md', 'busy-overload', `${atRtt}\n\n${made}`);
    writeFigures('docs/reference/limits.md', 'busy-compared', `${comparison}\n\n${made}`);
    writeFigures('docs/reference/limits.md', 'busy-real', `${sentence}\n\n${made}`);
    writeFileSync(new URL('../docs/pictures/busy-overload.svg', import.meta.url), picture());
  }
}
