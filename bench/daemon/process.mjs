/** Starts the daemon as a child process, and reads the CPU time and memory of a process. */

import { execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';

const TICKS = Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));

const running = new Set();
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** Folders of control groups in versions 1 and 2, and the file with the limit of memory. */
const MEMORY_GROUPS = [
  ['/sys/fs/cgroup/memory', 'memory.limit_in_bytes'],
  ['/sys/fs/cgroup', 'memory.max'],
];

let memoryBytes = Infinity;
let groups = 0;

/**
 * Every daemon from now on has so much memory, as in a container. Without the right to create a control group only its
 * heap is limited, to what Node chooses for so much memory.
 */
export function limitMemory(bytes) {
  memoryBytes = bytes;
}

/** The folder of a control group with the limit. */
function createMemoryGroup() {
  for (const [root, file] of MEMORY_GROUPS) {
    const folder = `${root}/sluice-${process.pid}-${++groups}`;
    try {
      mkdirSync(folder);
      writeFileSync(`${folder}/${file}`, `${memoryBytes}`);
      return folder;
    } catch {
      if (existsSync(folder)) rmdirSync(folder);
    }
  }
  return undefined;
}

/** The words that execute a command with the limit. */
function memoryWords() {
  const group = memoryBytes === Infinity ? undefined : createMemoryGroup();
  const leave = () => group && rmdirSync(group);
  const join = group ? ['sh', '-c', `echo $$ > ${group}/cgroup.procs; exec "$@"`, 'sh'] : [];
  const isHeapOnly = !group && memoryBytes < Infinity;
  const flags = isHeapOnly ? [`--max-old-space-size=${memoryBytes / 2 ** 21}`] : [];
  return { join, flags, leave };
}

/**
 * Starts the daemon and waits until it listens. `at` has its addresses by protocol. `within` is a command that executes
 * the daemon, such as `ip netns exec`; `log` is the target of standard error; `program` is the command of another build.
 */
export async function startDaemon(
  args,
  { env = {}, within = [], log = 'inherit', program = 'dist/bin/sluice.js' } = {},
) {
  const { join, flags, leave } = memoryWords();
  const words = [...join, ...within, process.execPath, ...flags, program, 'serve', ...args];
  const child = spawn(words[0], words.slice(1), {
    stdio: ['ignore', 'pipe', log],
    env: { ...process.env, ...env },
  });
  running.add(child);
  child.once('exit', leave);
  let said = '';
  await new Promise((ready, failed) => {
    child.once('exit', () => failed(new Error(`the daemon ended: ${said}`)));
    child.stdout.on('data', (chunk) => {
      said += chunk;
      if (said.includes('ready\n')) ready();
    });
  });
  child
    .removeAllListeners('exit')
    .once('exit', leave)
    .once('exit', () => running.delete(child));
  const at = { line: [], resp: [], http: [] };
  for (const [, protocol, where] of said.matchAll(/^ {2}(line|resp|http) +(\S+)/gm))
    at[protocol].push(where);
  const port = (protocol) => Number(at[protocol][0].split(':').at(-1));
  const stop = (signal = 'SIGTERM') =>
    new Promise((ended) => {
      if (child.exitCode !== null || child.signalCode !== null) return void ended();
      child.once('exit', ended);
      child.kill(signal);
    });
  return { pid: child.pid, at, port, stop };
}

/** CPU seconds that a process has used: in nanoseconds by thread where the kernel has them, else in ticks. */
export function cpuOf(pid) {
  const threads = `/proc/${pid}/task`;
  if (existsSync(`${threads}/${pid}/schedstat`)) {
    const nanos = readdirSync(threads).map((thread) =>
      Number(readFileSync(`${threads}/${thread}/schedstat`, 'utf8').split(' ')[0]),
    );
    return nanos.reduce((sum, each) => sum + each, 0) / 1e9;
  }
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** Resident memory of a process in bytes. */
export const memoryOf = (pid) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;
