import { throttle } from 'sluice';

// A minimum interval of 50 ms between calls, and three workers that queue for permits.
const call = throttle(async (worker, job) => `worker ${worker} did job ${job}`, {
  limit: { spacing: { every: '50ms', reserve: 10 } },
  wait: '5s',
});

const start = performance.now();
const work = async (worker) => {
  for (let job = 1; job <= 3; job++) {
    const result = await call(worker, job);
    console.log(`${String(Math.round(performance.now() - start)).padStart(4)} ms  ${result}`);
  }
};
await Promise.all([1, 2, 3].map(work));
