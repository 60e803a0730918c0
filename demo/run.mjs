/**
 * One limit, three daemons, no server between them: told in the terminal as it happens.
 *
 *     npm run demo                     watch it for three quarters of a minute
 *     npm run demo -- --fast           three times as fast, for CI
 *     npm run demo -- --svg FILE       and keep the screen at its most telling moment as a picture
 *
 * Real processes, real sockets, real time, and whatever it says was counted. Exit codes: 0 all of it held,
 * 1 something did not, 2 it could not be played. No daemon is left behind, also after Ctrl-C.
 */

import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { limiter } from 'sluice';
import { Caller } from './callers.mjs';
import { fleetOf } from './daemons.mjs';
import { pictureOf } from './svg.mjs';
import { paint, Screen } from './screen.mjs';
import { judge, play } from './scenario.mjs';
import { tableOf } from './table.mjs';

const REDRAW_MS = 500;

/** Everything the story needs, and nothing started yet. */
async function stageOf({ fast, svg }) {
  /** How much faster time passes than in the story: rates grow alike, so it is the same story. */
  const pace = fast ? 3 : 1;
  const limit = { rate: 10 * pace, burst: 40 };
  const daemons = await fleetOf(['north', 'south', 'west'], limit);
  const bucket = limiter({ limit: { bucket: { ...limit, rate: `${limit.rate}/s` } } });
  const [mallory, ...good] = ['mallory', 'alice', 'bob', 'carol'].map(
    (name) => new Caller(name, daemons, bucket),
  );
  const callers = [mallory, ...good];
  /** What each caller has left at each daemon, as it was last looked up. */
  const left = new Map();
  const look = async () => {
    for (const daemon of daemons.filter(({ state }) => state === 'up')) {
      const each = callers.map(async (caller) => [caller, await daemon.left(caller.name)]);
      left.set(daemon, new Map(await Promise.all(each)));
    }
  };
  const screen = new Screen(process.stdout, () => tableOf(callers, daemons, left, limit));
  /** Seconds since the first line was told. */
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
    tell(text) {
      screen.tell(`${paint('cyan', `${seconds().toFixed(0).padStart(3)} s`)}  ${text}`);
    },
    /** Lets so many seconds of the story go by. */
    async pass(storySeconds) {
      const end = performance.now() + (storySeconds * 1000) / pace;
      for (let rest = Infinity; rest > 0; rest = end - performance.now()) {
        await sleep(Math.max(0, Math.min(REDRAW_MS, end - performance.now())));
        await look();
        screen.draw();
      }
      screen.keepTable();
    },
    /** Says what came out; true if all of it holds. */
    conclude(findings) {
      screen.print('');
      for (const { text, holds } of findings) {
        screen.print(`${holds ? paint('green', 'yes') : paint('red', 'NO ')}  ${text}`);
      }
      return findings.every(({ holds }) => holds);
    },
    picture() {
      const lines = ['$ npm run demo', ...screen.lines()];
      if (svg) writeFileSync(svg, pictureOf('npm run demo, in a terminal', lines));
    },
  };
}

async function end({ daemons, mallory, good }) {
  for (const caller of [mallory, ...good]) caller.pause();
  await Promise.all(daemons.map((daemon) => daemon.end()));
}

/** Resolves with the exit code of a program that was told to stop, or that nobody reads any more. */
const interrupted = () =>
  new Promise((stop) => {
    process.stdout.once('error', () => stop(130));
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => stop(130));
  });

async function main() {
  const options = { fast: { type: 'boolean' }, svg: { type: 'string' } };
  const stage = await stageOf(parseArgs({ options }).values);
  const played = play(stage).then((known) => (stage.conclude(judge(stage, known)) ? 0 : 1));
  try {
    return await Promise.race([played, interrupted()]);
  } finally {
    await end(stage);
  }
}

const code = await main().catch((error) => {
  console.error(`the demo could not be played: ${error.message}`);
  return 2;
});
process.exit(code);
