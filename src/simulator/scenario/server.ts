import type { Millis } from '../../core/clock.ts';
import {
  network,
  quadraticContention,
  queueServer,
  quota,
  refusing,
  type Server,
  type Simulation,
  sharingServer,
} from '../laboratory/servers.ts';
import {
  constant,
  exponential,
  logNormal,
  pausing,
  type ServiceTime,
} from '../laboratory/service-times.ts';
import type { WorkLog } from './call-log.ts';
import type { ScenarioServer } from './scenario.ts';

/** Deviation of the logarithm of log-normal times: one call in a hundred takes 8 times the median. */
const SIGMA = 0.9;

/** How steeply calls slow down above the knee. */
const KNEE_SCALE = 4;

/** Server state that faults change. */
export interface ServerState {
  /** Factor on the duration of a call. */
  slowness: number;
  /** Number of active refusal faults: above 0, every call is refused. */
  refusals: number;
}

export function createServer(
  spec: ScenarioServer,
  simulation: Simulation,
  state: ServerState,
  log: WorkLog,
  startMs: Millis,
): Server {
  const { workers, knee, maxQueue, quotaPerSecond, busy, rttMs } = spec;
  const time = serviceTimeOf(spec);
  const service: ServiceTime = (random, now) => {
    const ms = time(random, now - startMs) * state.slowness;
    log.add(now - startMs, ms);
    return ms;
  };
  const plain =
    knee === undefined
      ? queueServer(simulation, { workers, service, maxQueue })
      : sharingServer(simulation, { service, speed: quadraticContention(knee, KNEE_SCALE) });
  const bounded =
    quotaPerSecond === undefined
      ? plain
      : quota(simulation, { perSecond: quotaPerSecond, countsRefused: false }, plain);
  const isRefused = (random: () => number): boolean =>
    state.refusals > 0 || (busy > 0 && random() < busy);
  return network(simulation, constant(rttMs), refusing(simulation, isRefused, bounded));
}

function serviceTimeOf({ timeMs, distribution, pause }: ScenarioServer): ServiceTime {
  const time = {
    constant: () => constant(timeMs),
    exponential: () => exponential(timeMs),
    'log-normal': () => logNormal(timeMs, SIGMA),
  }[distribution]();
  return pause ? pausing(pause.everyMs, pause.forMs, time) : time;
}
