/** Calls per second, and CPU time of this process per call in microseconds. */

const BATCH = 1024; // calls between two reads of the clock

/** Time that a measurement takes at most, as a multiple of its CPU time. */
const MAX_SLOWDOWN = 50;

function startCounting() {
  const used = process.cpuUsage();
  const at = performance.now();
  return (calls) => {
    const ms = performance.now() - at;
    const { user, system } = process.cpuUsage(used);
    return { perSecond: (calls / ms) * 1000, cpuUs: (user + system) / calls };
  };
}

/**
 * One call after the other, until the process has used `spanMs` of CPU time. Other load makes this take longer, but not less
 * exact. Calls get their number; an `async` one is awaited.
 */
export async function measureCalls({ sync, async: asynchronous }, spanMs) {
  const count = startCounting();
  const used = process.cpuUsage();
  const usedUs = () => {
    const { user, system } = process.cpuUsage(used);
    return user + system;
  };
  const end = performance.now() + spanMs * MAX_SLOWDOWN;
  let done = 0;
  for (; usedUs() < spanMs * 1000 && performance.now() < end; done += BATCH) {
    if (sync) for (let n = 0; n < BATCH; n++) sync(done + n);
    else for (let n = 0; n < BATCH; n++) await asynchronous(done + n);
  }
  return count(done);
}

/** Concurrent callers, each with one call in flight, for `spanMs`. */
export async function measureCallers(call, callers, spanMs) {
  const count = startCounting();
  const end = performance.now() + spanMs;
  let done = 0;
  const repeat = async (first) => {
    // Reads the clock every fourth time: a reading costs as much as the fastest decision.
    for (let n = first * 37; n % 4 !== 0 || performance.now() < end; n++) {
      await call(n);
      done++;
    }
  };
  await Promise.all(Array.from({ length: callers }, (_, n) => repeat(n)));
  return count(done);
}
