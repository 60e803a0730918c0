/**
 * Makes the machine busy or unsteady while tests run: `npm test -- --busy 4`, `npm test -- --stalls`.
 *
 * A stall suspends one process of the run, a worker, a server or a daemon, for up to half a second. The freezer of Linux
 * does it, where it can be used: SIGSTOP would be undone by a test that suspends and continues the same process.
 */

import { spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const MAX_STALL_MS = 500;
const MAX_PAUSE_MS = 300;
const FREEZER = '/sys/fs/cgroup/freezer';

/** Starts what disturbs the processes below this one; the function returned ends it. */
export function disturb({ busy, hasStalls }) {
  const loops = Array.from({ length: busy }, () => ['-e', 'for (;;);']);
  const injector = [fileURLToPath(import.meta.url), `${process.pid}`];
  const children = [...loops, ...(hasStalls ? [injector] : [])].map((args) =>
    spawn(process.execPath, args, { stdio: ['pipe', 'inherit', 'inherit'] }),
  );
  return () => {
    for (const child of children) child.kill();
  };
}

const parentOf = (pid) => {
  try {
    return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ')[1]);
  } catch {
    return 0; // it has ended
  }
};

/** All processes below one, this one left out. */
function processesBelow(root) {
  const parents = new Map(
    readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map((pid) => [Number(pid), parentOf(pid)]),
  );
  const isBelow = (pid) => pid > 0 && (parents.get(pid) === root || isBelow(parents.get(pid) ?? 0));
  return [...parents.keys()].filter((pid) => pid !== process.pid && isBelow(pid));
}

function freezer() {
  const group = join(FREEZER, `sluice-stalls-${process.pid}`);
  mkdirSync(group);
  process.once('exit', () => rmdirSync(group));
  const setState = (state) => writeFileSync(join(group, 'freezer.state'), state);
  return {
    stop(pid) {
      writeFileSync(join(group, 'cgroup.procs'), `${pid}`);
      setState('FROZEN');
    },
    resume(pid) {
      setState('THAWED');
      if (existsSync(`/proc/${pid}`)) writeFileSync(join(FREEZER, 'cgroup.procs'), `${pid}`);
    },
  };
}

const SIGNALS = {
  stop: (pid) => process.kill(pid, 'SIGSTOP'),
  resume: (pid) => process.kill(pid, 'SIGCONT'),
};

async function injectStalls(root) {
  let isOver = false;
  process.once('SIGTERM', () => {
    isOver = true;
  });
  const { stop, resume } = existsSync(FREEZER) && process.getuid() === 0 ? freezer() : SIGNALS;
  let stalls = 0;
  while (!isOver && existsSync(`/proc/${root}`)) {
    await sleep(Math.random() * MAX_PAUSE_MS);
    const pids = processesBelow(root);
    const pid = pids[Math.floor(Math.random() * pids.length)];
    if (pid === undefined) continue;
    try {
      stop(pid);
      await sleep(Math.random() * MAX_STALL_MS);
      resume(pid);
      stalls++;
    } catch {
      // it has ended meanwhile
    }
  }
  console.log(`${stalls} stalls were injected.`);
  process.exit(0);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await injectStalls(Number(process.argv[2]));
