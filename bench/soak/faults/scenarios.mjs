/**
 * Faults, each with the figures that it may at most cause.
 *
 * A scenario builds its rig, injects its fault and returns what the checker found. Every figure has a bound, and the
 * bound a reason. Figures grow with the damage: a figure above its bound is a violation. A run with fewer permits than
 * `minPermits` has tested nothing, and fails.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import {
  longestIdle,
  longestStall,
  overshootOf,
  peakInFlight,
  peakPerSecond,
  slowestDecision,
  spacingOf,
  tokensOutOfOrder,
  totalUsed,
} from './checker.mjs';

/** Refills one token in an hour: within a run, what is taken does not come back by itself. */
const PER_HOUR = { perSecond: 1 / 3600 };
const scarce = (burst) => ({ bucket: { rate: '1/h', burst } });

/** The clock of the records. */
const machineNow = () => Number(process.hrtime.bigint()) / 1e6;

/** Of every scenario whose workers are closed. */
export const EXIT_BOUND = {
  name: 'exit after close',
  bound: 5000,
  unit: 'ms',
  reason: 'close() releases timers and connections, so nothing keeps the process alive',
};

const noOvershoot = (reason) => ({ name: 'overshoot', bound: 0, unit: 'permits', reason });

/** Workers that share a limit through Redis, in turn with each client. */
async function startWorkers(rig, count, settings) {
  const workers = [];
  for (let n = 0; n < count; n++) {
    const client = n % 2 ? 'ioredis' : 'node-redis';
    workers.push(await rig.worker({ backend: 'redis', client, ...settings }));
  }
  return workers;
}

/** Waits until calls are decided by the server again, and takes what there is. */
async function takeRest(worker, forMs = 1500) {
  for (let waitedMs = 0; waitedMs < forMs; waitedMs += 100) {
    await worker.do('take');
    await sleep(100);
  }
}

/** A reply is lost after Redis has executed the request: a client that sends it again must not return twice. */
const giveBackLost = (client, sort) => ({
  name: `give-back-${client}`,
  title: `give-back with its reply lost, ${sort}`,
  runs: 4,
  minPermits: 1,
  bounds: [
    noOvershoot('what was given back can be taken again once, however often the client sends it'),
    {
      name: 'permits lost',
      bound: 0,
      unit: 'permits',
      reason: 'Redis had executed the give-back, so all of it can be taken again',
    },
  ],
  async run(rig, random) {
    const burst = 6 + Math.floor(10 * random());
    const unused = 1 + Math.floor((burst - 2) * random());
    const isPermit = random() < 0.5;
    const { proxy } = await rig.redis();
    const worker = await rig.worker({
      backend: 'redis',
      client,
      port: proxy.port,
      limit: scarce(burst),
      options: { onUnavailable: 'deny' },
    });
    const cost = isPermit ? unused : burst;
    const { n } = await worker.do(
      ...(isPermit ? ['decide', { method: 'tryAcquire', cost }] : ['take']),
    );
    if (isPermit) await worker.do('take');
    const lost = proxy.loseReplies();
    worker.do(
      ...(isPermit ? ['settle', { n, outcome: 'ignored', cost }] : ['giveBack', { n, unused }]),
    );
    await lost;
    proxy.cut();
    await sleep(100);
    proxy.pass();
    await takeRest(worker);
    await rig.closeAll();
    const calls = rig.calls();
    return {
      overshoot: overshootOf(calls, { burst, ...PER_HOUR }),
      'permits lost': burst - totalUsed(calls),
    };
  },
});

const MAX_EARLY = 14;

/** A bucket that has refilled since a batch was taken must not take back the batch as well. */
const giveBackLate = ({ name, title, backend, isTimed, bound }) => ({
  name,
  title,
  runs: 4,
  minPermits: 2,
  bounds: [bound],
  async run(rig, random) {
    const perSecond = 20 + Math.floor(40 * random());
    const burst = 20;
    const early = 5 + Math.floor((MAX_EARLY - 4) * random());
    const port = backend === 'redis' ? (await rig.server('redis')).port : 0;
    const worker = await rig.worker({
      ...{ backend, client: 'node-redis', port },
      limit: { bucket: { rate: `${perSecond}/s`, burst } },
    });
    const { n, cost } = await worker.do('take', { max: early });
    await sleep((1000 * early) / perSecond + 50);
    await worker.do('take');
    await worker.do('giveBack', { n, unused: cost, isTimed });
    await worker.do('take');
    await rig.closeAll();
    return { overshoot: overshootOf(rig.calls(), { burst, perSecond }) };
  },
});

const LATE_GIVE_BACKS = [
  ...['local', 'redis'].map((backend) => ({
    name: `give-back-after-refill-${backend}`,
    title: `give-back with takenAt after a refill, ${backend}`,
    ...{ backend, isTimed: true },
    bound: noOvershoot('in any span at most burst + rate × span are used'),
  })),
  {
    name: 'give-back-untimed-local',
    title: 'give-back without takenAt of an earlier batch, local',
    ...{ backend: 'local', isTimed: false },
    bound: {
      name: 'overshoot',
      bound: MAX_EARLY,
      unit: 'permits',
      reason: `without takenAt the last take is meant, so the earlier batch counts twice: ${MAX_EARLY} at most`,
    },
  },
];

const OUTAGE_MS = 300;

/** Ends the run of a limit of 4 calls in flight. */
async function placesOf(rig) {
  const until = machineNow();
  const calls = rig.calls(); // before the waiting calls are refused
  await rig.closeAll();
  return {
    'peak in flight': peakInFlight(calls),
    'free place beside a waiting call': longestIdle(calls, 4, until),
  };
}

const connectionLost = {
  name: 'in-flight-connection-lost',
  title: `concurrency limit, connections lost for ${OUTAGE_MS} ms`,
  runs: 3,
  minPermits: 20,
  bounds: [
    { name: 'peak in flight', bound: 4, unit: 'calls', reason: 'the limit' },
    {
      name: 'free place beside a waiting call',
      bound: OUTAGE_MS + 400 + 100 + 500,
      unit: 'ms',
      reason: `the loss (${OUTAGE_MS} ms), the longest interval of the probe (400 ms), a reconnection (100 ms), and 500 ms for two busy cores`,
    },
  ],
  async run(rig, random) {
    const { proxy } = await rig.redis();
    const workers = await startWorkers(rig, 2, {
      port: proxy.port,
      limit: { concurrency: 4 },
      options: { onUnavailable: 'deny' },
    });
    for (const worker of workers) worker.do('loop', { callers: 4, holdMs: 30 + 20 * random() });
    await sleep(800 + 400 * random());
    proxy.cut();
    await sleep(OUTAGE_MS);
    proxy.pass();
    await sleep(3500);
    return placesOf(rig);
  },
};

/** A client may send a request again within its deadline: a call must not wait for a place that it has got itself. */
const grantLost = {
  name: 'in-flight-reply-lost',
  title: 'concurrency limit, replies lost and connections reset, deadline of 1 s',
  runs: 3,
  minPermits: 20,
  bounds: [
    { name: 'peak in flight', bound: 4, unit: 'calls', reason: 'the limit' },
    {
      name: 'free place beside a waiting call',
      bound: 400 + 100 + 500,
      unit: 'ms',
      reason:
        'the longest interval of the probe (400 ms), a reconnection (100 ms), and 500 ms for two busy cores',
    },
  ],
  async run(rig, random) {
    const { proxy } = await rig.redis();
    const workers = await startWorkers(rig, 2, {
      port: proxy.port,
      limit: { concurrency: 4 },
      options: { onUnavailable: 'deny', deadline: 1000 },
    });
    for (const worker of workers) worker.do('loop', { callers: 4, holdMs: 30 + 20 * random() });
    for (let round = 0; round < 4; round++) {
      await sleep(500 + 400 * random());
      await proxy.loseReplies();
      await sleep(10 * random());
      proxy.cut();
      proxy.pass();
    }
    await sleep(1500);
    return placesOf(rig);
  },
};

/** An outage in which the processes decide for themselves. */
const fallback = ({ processes, limit, figure, act, ...scenario }) => ({
  ...scenario,
  runs: 3,
  minPermits: 20,
  async run(rig, random) {
    const { proxy } = await rig.redis();
    const workers = await startWorkers(rig, processes, {
      port: proxy.port,
      limit,
      options: { onUnavailable: 'local', processes },
    });
    for (const worker of workers) worker.do(...act);
    await sleep(1500 + 500 * random());
    proxy.freeze();
    await sleep(1200);
    proxy.cut(); // what was on its way is lost
    proxy.pass();
    await sleep(1500);
    const until = machineNow();
    await rig.closeAll();
    return figure(rig.calls(), until);
  },
});

const FALLBACK_BUCKET = { perSecond: 20, burst: 30 };
const fallbackBucket = (processes) =>
  fallback({
    name: `fallback-bucket-${processes}`,
    title: `local fallback of a bucket, Redis unavailable for 1.2 s, processes: ${processes}`,
    processes,
    limit: { bucket: { rate: '20/s', burst: 30 } },
    act: ['loop', { callers: 1, method: 'check', pauseMs: 5 }],
    bounds: [
      {
        name: 'overshoot',
        bound: 2 * processes,
        unit: 'permits',
        reason:
          'a process rounds its part to a whole call when it takes over and when it hands back',
      },
      {
        name: 'stall',
        bound: 100 + 400 + 500,
        unit: 'ms',
        reason:
          'the deadline of one call (100 ms), the longest interval of the probe (400 ms), and 500 ms for two busy cores',
      },
    ],
    figure: (calls, until) => ({
      overshoot: overshootOf(calls, FALLBACK_BUCKET),
      stall: longestStall(calls, FALLBACK_BUCKET, until),
    }),
  });

const fallbackConcurrency = (processes, bound, reason) =>
  fallback({
    name: `fallback-concurrency-${processes}`,
    title: `local fallback of a concurrency limit of 4, Redis unavailable for 1.2 s, processes: ${processes}`,
    processes,
    limit: { concurrency: 4 },
    act: ['loop', { callers: 10, holdMs: 400 }],
    bounds: [{ name: 'peak in flight', bound, unit: 'calls', reason }],
    figure: (calls) => ({ 'peak in flight': peakInFlight(calls) }),
  });

const LEASE_MS = 10_000;

const leaseEnded = {
  name: 'lease-ended',
  title: 'concurrency limit, a holder suspended for longer than its lease',
  runs: 1,
  minPermits: 50,
  bounds: [
    {
      name: 'peak in flight',
      bound: 6,
      unit: 'calls',
      reason:
        'the limit of 4, and 2 calls whose process was suspended and could not know that their leases had ended',
    },
    {
      name: 'peak in flight of the other process',
      bound: 4,
      unit: 'calls',
      reason: 'the limit: a late settlement frees no place of another call',
    },
    {
      name: 'fencing tokens out of order',
      bound: 0,
      unit: 'pairs',
      reason: 'the token of a key grows with every grant, so a resource can refuse the older call',
    },
    {
      name: 'holder informed after it went on',
      bound: 900,
      unit: 'ms',
      reason: 'the process compares its clock with the end of its leases as soon as it runs again',
    },
    {
      name: 'peak in flight 4 s after it went on',
      bound: 4,
      unit: 'calls',
      reason:
        'a lease is renewed every 3.3 s, so by then the process has settled its old calls and Redis counts all',
    },
  ],
  async run(rig) {
    const server = await rig.server('redis');
    const settings = { backend: 'redis', client: 'node-redis', port: server.port };
    const limit = { concurrency: 4 };
    const options = { onUnavailable: 'deny' };
    const holder = await rig.worker({ ...settings, limit, options, hasSignals: true });
    const other = await rig.worker({ ...settings, limit, options });
    const held = [];
    for (let n = 0; n < 2; n++) held.push(await holder.do('decide', { method: 'tryAcquire' }));
    other.do('loop', { callers: 6, holdMs: 150 });
    await sleep(500);
    holder.pause();
    await sleep(LEASE_MS + 1500);
    holder.resume();
    const resumedAt = machineNow();
    await sleep(1000);
    for (const { n } of held) await holder.do('settle', { n, outcome: 'ok' });
    holder.do('loop', { callers: 6, holdMs: 150 });
    await sleep(3000);
    const lateSince = machineNow();
    await sleep(1500);
    await rig.closeAll();
    const calls = rig.calls();
    return {
      'peak in flight': peakInFlight(calls),
      'peak in flight of the other process': peakInFlight(calls.filter(({ from }) => from === 1)),
      'fencing tokens out of order': tokensOutOfOrder(calls),
      'holder informed after it went on': Math.max(
        ...calls
          .filter(({ from, n }) => from === 0 && held.some((each) => each.n === n))
          .map(({ endedAt = Infinity }) => endedAt - resumedAt),
      ),
      'peak in flight 4 s after it went on': peakInFlight(
        calls.filter(({ grantedAt = 0 }) => grantedAt >= lateSince),
      ),
    };
  },
};

/**
 * Callers of each of four workers. A caller that got a permit ahead sleeps until it is due, then takes half a round trip to
 * join again: at 10 ms and 80 ms about 35 of them are not in the queue.
 */
const CALLERS = 25;

const farQueue = ([everyMs, roundTripMs]) => ({
  name: `fleet-queue-${everyMs}-${roundTripMs}`,
  title: `queue of the fleet, spacing of ${everyMs} ms, ${roundTripMs > 0 ? `round trip of ${roundTripMs} ms` : 'loopback'}`,
  runs: 1,
  minPermits: 20,
  bounds: [
    { name: 'permits too close', bound: 0, unit: 'permits', reason: 'the spacing' },
    {
      name: 'permits early',
      bound: 0,
      unit: 'permits',
      reason: 'a caller gets a permit that was granted ahead when it is due on the clock of Redis',
    },
    {
      name: 'unused share',
      bound: 0.05,
      unit: 'of the rate',
      reason: 'a hundred callers wait, and a place can be granted ahead by the round trip',
    },
  ],
  async run(rig) {
    const { proxy } = await rig.redis();
    proxy.delay(roundTripMs / 2);
    const workers = await startWorkers(rig, 4, {
      port: proxy.port,
      limit: { spacing: { every: everyMs } },
      options: { fairQueue: true, deadline: 200 + 10 * roundTripMs },
    });
    for (const worker of workers) worker.do('loop', { callers: CALLERS });
    await sleep(2000);
    const since = machineNow();
    await sleep(5000);
    const calls = rig.calls();
    await rig.closeAll();
    const steady = calls.filter(({ grantedAt = 0 }) => grantedAt >= since);
    const { tooClose, early } = spacingOf(calls, everyMs);
    return {
      'permits too close': tooClose,
      'permits early': early,
      'unused share': spacingOf(steady, everyMs).unused,
    };
  },
});

const QUEUES = [
  [10, 80],
  [20, 80],
  [50, 80],
  [100, 80],
  [10, 0],
  [100, 0],
];

/** A call that was refused must not be counted. */
const firstCall = (client) => ({
  name: `first-call-${client}`,
  title: `first call of a limiter while Redis is suspended for 400 ms, ${client}`,
  runs: 3,
  minPermits: 1,
  bounds: [
    {
      name: 'permits lost',
      bound: 0,
      unit: 'permits',
      reason: 'a call that reaches Redis after its deadline takes nothing',
    },
    {
      name: 'slowest decision',
      bound: 100 + 400,
      unit: 'ms',
      reason: 'the deadline of 100 ms, and 400 ms for two busy cores',
    },
  ],
  async run(rig) {
    const server = await rig.server('redis');
    const burst = 6;
    const worker = await rig.worker({
      ...{ backend: 'redis', client, port: server.port, isCold: true },
      limit: scarce(burst),
      options: { onUnavailable: 'deny' },
    });
    server.pause();
    const first = worker.do('decide', { method: 'check', cost: 4 });
    await sleep(400);
    server.resume();
    await first;
    await takeRest(worker);
    await rig.closeAll();
    const calls = rig.calls();
    return {
      'permits lost': burst - totalUsed(calls),
      'slowest decision': slowestDecision(calls),
    };
  },
});

const POOL_LIMIT = 103;

const oneId = (store) => ({
  name: `pool-one-id-${store}`,
  title: `two members of a pool with one id, the first suspended, store ${store}`,
  runs: 2,
  minPermits: 10,
  bounds: [
    {
      name: 'peak in a second',
      bound: POOL_LIMIT,
      unit: 'permits',
      reason:
        'the parts of all members add up to the limit, in every second of the clock of the store',
    },
  ],
  async run(rig, random) {
    const server = await rig.server(store);
    const limit = { ramp: { min: POOL_LIMIT, max: POOL_LIMIT, over: '1s' } };
    const member = async (id) => {
      const settings = { backend: 'pool', store, client: 'node-redis', port: server.port, limit };
      const worker = await rig.worker({ ...settings, options: { name: 'faults', id } });
      worker.do('spend', { everyMs: 2 });
      return worker;
    };
    /** Until a worker has a part of the limit. */
    const spends = async (from) => {
      for (let waitedMs = 0; waitedMs < 15_000; waitedMs += 50) {
        if (rig.calls().some((call) => call.from === from && call.cost > 0)) return;
        await sleep(50);
      }
      throw new Error('a member of the pool has no part after 15 s');
    };
    const first = await member('one');
    await spends(0);
    await member('other');
    await spends(1);
    first.pause();
    await member('one');
    await spends(2);
    await sleep(1000 * random());
    first.resume();
    await sleep(4000);
    await rig.closeAll();
    return { 'peak in a second': peakPerSecond(rig.calls()) };
  },
});

const closeWhileConnecting = (client) => ({
  name: `close-while-connecting-${client}`,
  title: `close() while a connection is being opened (DNS look-up of 200 ms), ${client}`,
  runs: 3,
  minPermits: 0,
  bounds: [],
  async run(rig, random) {
    const server = await rig.server('redis');
    const worker = await rig.worker({
      ...{ backend: 'redis', client, port: server.port, lookupMs: 200 },
      limit: { spacing: { every: '10s' } },
      options: { fairQueue: true },
    });
    worker.do('loop', { callers: 2 }); // the queue opens a second connection
    await sleep(20 + 160 * random());
    await rig.closeAll();
    return {};
  },
});

const etcdAwait = (size) => ({
  name: `etcd-await-${size}`,
  title: `awaited calls at the top level, while ${size === 1 ? 'the only etcd member' : `one of ${size} etcd members`} restarts`,
  runs: 2,
  minPermits: 5,
  hasNoClose: true,
  bounds: [
    {
      name: 'exit code',
      bound: 0,
      unit: '',
      reason:
        'a pending call keeps the process alive; Node ends one with nothing to do with code 13',
    },
    {
      name: 'slowest decision',
      bound: 500 + 1000 + 500,
      unit: 'ms',
      reason:
        'the wait of 500 ms, a deadline of 1 s that began in it, and 500 ms for two busy cores',
    },
  ],
  async run(rig, random) {
    const { endpoints, pause, kill, restart } = await rig.etcd(size);
    const limit = { spacing: { every: 20 } };
    const exit = rig.bareWorker({ endpoints, limit, forMs: 6000 });
    await sleep(800);
    for (let round = 0; round < 3; round++) {
      const member = Math.floor(size * random());
      if (random() < 0.5) pause(member); // calls are on their way when the member dies
      await sleep(300 * random());
      await kill(member);
      await sleep(500 * random());
      await restart(member);
      await sleep(600);
    }
    const code = await Promise.race([exit, sleep(20_000).then(() => Infinity)]);
    return { 'exit code': code ?? Infinity, 'slowest decision': slowestDecision(rig.calls()) };
  },
});

export const SCENARIOS = [
  giveBackLost('node-redis', 'node-redis'),
  giveBackLost('ioredis', 'ioredis with the documented options'),
  giveBackLost('ioredis-defaults', 'ioredis with its default options'),
  ...LATE_GIVE_BACKS.map(giveBackLate),
  connectionLost,
  grantLost,
  fallbackBucket(1),
  fallbackBucket(2),
  fallbackConcurrency(1, 4, 'the limit: a process knows all calls that it has in flight'),
  fallbackConcurrency(
    2,
    6,
    'one process may have the whole limit of 4 in flight, the other its part of 2',
  ),
  leaseEnded,
  ...QUEUES.map(farQueue),
  firstCall('node-redis'),
  firstCall('ioredis'),
  ...['redis', 'nats', 'etcd'].map(oneId),
  closeWhileConnecting('node-redis'),
  closeWhileConnecting('ioredis'),
  ...[1, 3].map(etcdAwait),
];
