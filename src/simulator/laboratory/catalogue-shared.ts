/** Sinks that several clients share. The clocks of any two clients differ. */

import type { Millis } from '../../core/clock.ts';
import { fixedRule, learntRule } from './rule.ts';
import { onCores, quadraticContention } from './servers.ts';
import { constant, exponential, logNormal, mixture } from './service-times.ts';
import type { ClientTerms, CreateServer, Sink } from './sink.ts';
import { type Details, MM40, MS_100, poisson, queue, sharing, sink, withQuota } from './sinks.ts';
import { vegas } from './vegas.ts';

const JOIN_EVERY_MS: Millis = 3000;

/** One more client every 3 s; measured from 11 s after the last one on, for 55 s. */
const joining = (clients: number, more: (client: number) => ClientTerms = () => ({})): Details => {
  const measureFromMs = JOIN_EVERY_MS * (clients - 1) + 14_000;
  return {
    clients,
    client: (n) => ({ joinsAtMs: JOIN_EVERY_MS * n, ...more(n) }),
    measureFromMs,
    durationMs: measureFromMs + 55_000,
  };
};

const together = (clients: number): Details => ({
  clients,
  measureFromMs: 20_000,
  durationMs: 75_000,
});

const workersFor = (clients: number): CreateServer => queue(5 * clients, MS_100);

const joiningOn = (clients: number): Sink =>
  sink(
    'shared',
    `clients-${clients}`,
    `${clients} clients on ${5 * clients} workers, one more every 3 s`,
    workersFor(clients),
    joining(clients),
  );

const togetherOn = (clients: number): Sink =>
  sink(
    'shared',
    `together-${clients}`,
    `${clients} clients on ${5 * clients} workers, all at once`,
    workersFor(clients),
    together(clients),
  );

/** Round trips of the clients: 1 to 197 ms. */
const far = (n: number): ClientTerms => ({ roundTrip: constant(1 + 28 * n) });

/** Calls arrive at 0.6, from second 40 on at 1.4 of the rate of a server with five workers a client. */
const STEP_AT_MS: Millis = 40_000;
const step = (clients: number): Sink => {
  const rate = 50;
  const stepped = poisson((now) => (now < STEP_AT_MS ? 0.6 : 1.4) * rate);
  const more: Details = { clients, arrivals: stepped, maxBacklog: 50, durationMs: 90_000 };
  const server = workersFor(clients);
  const becomes = sink('shared', 'after', 'load 140 %', server, {
    ...more,
    arrivals: poisson(() => 1.4 * rate),
  });
  return sink(
    'shared',
    `step-${clients}`,
    `${clients} clients; load 60 %, from second 40 on 140 %`,
    server,
    { ...more, measureFromMs: 30_000, changes: [{ atMs: STEP_AT_MS, becomes }] },
  );
};

export const SHARED: readonly Sink[] = [
  ...[2, 4, 8, 16, 32].map(joiningOn),
  ...[8, 16, 32].map(togetherOn),
  sink(
    'shared',
    'clients-10',
    '10 clients on 40 workers: 5 at once, 5 together at second 25',
    MM40,
    {
      clients: 10,
      client: (n) => ({ joinsAtMs: n < 5 ? 0 : 25_000 }),
      measureFromMs: 35_000,
      durationMs: 90_000,
    },
  ),
  sink('shared', 'leaving', '8 clients on 40 workers; at second 50 four leave', MM40, {
    ...joining(8, (n) => (n % 2 === 1 ? { leavesAtMs: 50_000 } : {})),
    measureFromMs: 50_000,
  }),
  sink('shared', 'paths-2', '2 clients on 20 workers, 1 and 100 ms away', queue(20, MS_100), {
    ...joining(2, (n) => ({ roundTrip: constant(1 + 99 * n) })),
  }),
  sink('shared', 'paths-8', '8 clients on 40 workers, 1 to 197 ms away', MM40, joining(8, far)),
  sink(
    'shared',
    'demands',
    '8 clients on 40 workers; 4 need only 20 calls a second',
    MM40,
    joining(8, (n) => (n % 2 === 1 ? { arrivals: poisson(() => 20) } : {})),
  ),
  sink(
    'shared',
    'greedy',
    '4 clients on 40 workers beside a fixed limit of 20',
    MM40,
    joining(5, (n) => (n === 0 ? { neighbour: () => fixedRule(20) } : {})),
  ),
  sink(
    'shared',
    'vegas-neighbour',
    '4 clients on 40 workers beside one that follows Vegas',
    MM40,
    joining(5, (n) => (n === 0 ? { neighbour: (random) => learntRule(vegas(random)) } : {})),
  ),
  sink(
    'shared',
    'sharing-8',
    '8 clients; processor sharing on 40 cores',
    sharing(onCores(40), MS_100),
    joining(8),
  ),
  sink(
    'shared',
    'knee-8',
    '8 clients; beyond 40 calls contention grows by the square',
    sharing(quadraticContention(40, 4), MS_100),
    joining(8),
  ),
  sink(
    'shared',
    'deterministic-8',
    '8 clients on 40 workers, exactly 100 ms',
    queue(40, constant(100)),
    joining(8),
  ),
  sink(
    'shared',
    'lognormal-8',
    '8 clients on 40 workers, 100 ms with a heavy tail',
    queue(40, logNormal(100, 1)),
    joining(8),
  ),
  sink(
    'shared',
    'mixed-8',
    '8 clients on 40 workers; 90 % take 30 ms, 10 % 500 ms',
    queue(40, mixture(0.9, exponential(30), exponential(500))),
    joining(8),
  ),
  sink('shared', 'small-8', '8 clients on 8 workers', queue(8, MS_100), joining(8)),
  sink('shared', 'large-4', '4 clients on 200 workers', queue(200, MS_100), joining(4)),
  sink('shared', 'fast-4', '4 clients on 16 workers, 5 ms a call', queue(16, exponential(5)), {
    ...joining(4),
    durationMs: 45_000,
  }),
  sink(
    'shared',
    'halved-8',
    '8 clients on 40 workers, 20 from second 50 to 70',
    queue((now) => (now >= 50_000 && now < 70_000 ? 20 : 40), MS_100),
    joining(8),
  ),
  sink('shared', 'quota-4', '4 clients; 320 calls in any second, then 429', withQuota(320), {
    ...joining(4),
  }),
  sink(
    'shared',
    'overflow-8',
    '8 clients on 40 workers; 503 above a queue of 10',
    queue(40, MS_100, 10),
    {
      ...joining(8),
    },
  ),
  step(8),
  step(32),
];
