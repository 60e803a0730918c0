import { throttle } from 'sluice';

// An API that wants its calls at least 50 ms apart, and three workers who share it.
const call = throttle(async (worker, job) => `worker ${worker} did job ${job}`, {
  limit: { spacing: { every: '50ms', reserve: 10 } },
  wait: '5s',
});

const start = performance.now();
const work = async (worker) => {
  for (let job = 1; job <= 3; job++) {
    const said = await call(worker, job);
    console.log(`${String(Math.round(performance.now() - start)).padStart(4)} ms  ${said}`);
  }
};
await Promise.all([1, 2, 3].map(work));
