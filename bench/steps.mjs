/**
 * All measurements in their order: a script of package.json, its arguments, and its usual duration in minutes on two
 * cores.
 */

const WRITE = ['--write'];

const step = (script, minutes, ...words) => ({
  name: [script, ...words.filter((word) => !word.startsWith('--'))].join(' '),
  script,
  words,
  minutes,
});

export const STEPS = [
  // Benchmarks write bench/RESULTS.md after every full run.
  step('bench', 4),
  step('bench:throttle', 1),
  step('bench:events', 1),
  step('bench:replay', 3),
  step('bench:simulator', 1, ...WRITE),
  step('bench:daemon-start', 1, ...WRITE),
  step('bench:http', 4),
  step('bench:daemon', 6),
  step('bench:daemon', 1, 'http'),
  step('bench:peers', 1),
  step('bench:workers', 2, ...WRITE),
  step('bench:start', 1, ...WRITE),
  step('bench:redis', 2),
  step('bench:pool', 2),
  step('bench:keys', 1, ...WRITE),
  step('soak:redis', 2, ...WRITE),
  step('soak:redis', 3, 'chaos', ...WRITE),
  step('soak:redis', 2, 'concurrency', ...WRITE),
  step('soak:redis', 1, 'prefetch', ...WRITE),
  step('soak:redis', 1, 'fair', ...WRITE),
  step('soak:faults', 7, ...WRITE),
  step('soak:etcd', 4, ...WRITE),
  step('soak:etcd', 1, 'speed', '--loopback', ...WRITE),
  step('soak:peers', 6, ...WRITE),
  step('soak:pool', 20, ...WRITE),
  step('soak:groups', 3, ...WRITE),
  step('soak:daemon', 2, ...WRITE),
  step('soak:history', 1, ...WRITE),
  step('soak:fuzz', 1, ...WRITE),
  step('soak:attack', 10, ...WRITE),
  step('soak:peers-fuzz', 2, ...WRITE),
  step('figures:seeds', 5, ...WRITE),
  step('figures:busy', 2, ...WRITE),
  step('figures:adaptive', 4, ...WRITE),
  step('figures:priorities', 2, ...WRITE),
  step('figures:guard', 3, ...WRITE),
  step('figures:stalls', 2, ...WRITE),
  step('figures:overload', 4, ...WRITE),
  step('figures:adaptive-live', 22, ...WRITE),
  step('figures:accuracy', 30, ...WRITE),
];
