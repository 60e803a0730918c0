/**
 * A demonstration of peers in the terminal: three daemons share one limit by gossip, without a central server.
 *
 *     npm run demo                     45 seconds
 *     npm run demo -- --fast           three times as fast, for CI
 *     npm run demo -- --svg FILE       also draws the screen after the restart of a daemon
 *
 * Real processes and sockets, in real time; all numbers are measured. Exit codes: 0 all checks hold, 1 one does not,
 * 2 the demo could not run. It stops its daemons, also after Ctrl-C.
 */

import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { limiter } from 'sluice';
import { Caller } from './callers.mjs';
import { fleetOf } from './daemons.mjs';
import { checksOf, runScenario } from './scenario.mjs';
import { paint, Screen } from './screen.mjs';
import { drawScreen } from './svg.mjs';
import { tableOf } from './table.mjs';

const REDRAW_MS = 500;

/** The daemons, callers and output of a scenario, not started. */
async function createDemo({ fast, svg }) {
  /** Speed-up: times are divided and rates multiplied by it. */
  const pace = fast ? 3 : 1;
  const limit = { rate: 10 * pace, burst: 40 };
  const daemons = await fleetOf(['north', 'south', 'west'], limit);
  const bucket = limiter({ limit: { bucket: { ...limit, rate: `${limit.rate}/s` } } });
  const [mallory, ...good] = ['mallory', 'alice', 'bob', 'carol'].map(
    (name) => new Caller(name, daemons, bucket),
  );
  const callers = [mallory, ...good];
  /** Remaining calls of each caller at each daemon, at the last sample. */
  const remaining = new Map();
  const sample = async () => {
    for (const daemon of daemons.filter(({ state }) => state === 'up')) {
      const each = callers.map(async (caller) => [caller, await daemon.remaining(caller.name)]);
      remaining.set(daemon, new Map(await Promise.all(each)));
    }
  };
  const screen = new Screen(process.stdout, () => tableOf(callers, daemons, remaining, limit));
  /** Seconds since the first line. */
  let startedAt;
  const seconds = () => {
    startedAt ??= performance.now();
    return (performance.now() - startedAt) / 1000;
  };
  return {
    pace,
    limit,
    daemons,
    mallory,
    good,
    seconds,
    log(text) {
      screen.log(`${paint('cyan', `${seconds().toFixed(0).padStart(3)} s`)}  ${text}`);
    },
    /** Waits this many seconds, divided by the pace, and redraws the table. */
    async pass(scenarioSeconds) {
      const end = performance.now() + (scenarioSeconds * 1000) / pace;
      for (let rest = Infinity; rest > 0; rest = end - performance.now()) {
        await sleep(Math.max(0, Math.min(REDRAW_MS, end - performance.now())));
        await sample();
        screen.draw();
      }
      screen.keepTable();
    },
    /** Prints the checks; true if all hold. */
    conclude(checks) {
      screen.print('');
      for (const { text, holds } of checks) {
        screen.print(`${holds ? paint('green', 'yes') : paint('red', 'NO ')}  ${text}`);
      }
      return checks.every(({ holds }) => holds);
    },
    writeSvg() {
      const lines = ['$ npm run demo', ...screen.lines()];
      if (svg) writeFileSync(svg, drawScreen('npm run demo in a terminal', lines));
    },
  };
}

async function end({ daemons, mallory, good }) {
  for (const caller of [mallory, ...good]) caller.pause();
  await Promise.all(daemons.map((daemon) => daemon.end()));
}

/** Resolves with the exit code on a signal, or when standard output is closed. */
const interrupted = () =>
  new Promise((stop) => {
    process.stdout.once('error', () => stop(130));
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => stop(130));
  });

async function main() {
  const options = { fast: { type: 'boolean' }, svg: { type: 'string' } };
  const demo = await createDemo(parseArgs({ options }).values);
  const finished = runScenario(demo).then((restart) =>
    demo.conclude(checksOf(demo, restart)) ? 0 : 1,
  );
  try {
    return await Promise.race([finished, interrupted()]);
  } finally {
    await end(demo);
  }
}

const code = await main().catch((error) => {
  console.error(`the demo could not run: ${error.message}`);
  return 2;
});
process.exit(code);
