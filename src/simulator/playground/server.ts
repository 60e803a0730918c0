/**
 * The server of the playground: it serves calls at full speed up to its knee, and slows down beyond it.
 *
 *     calls a second                        time of a call
 *          ╭───────  no contention                      ╱
 *         ╱╲                                           ╱
 *        ╱   ╲____   contention               ________╱
 *       ╱    knee           calls in flight       knee            calls in flight
 *
 * Below the knee a call takes its service time. Beyond it all calls share the server's capacity (processor sharing):
 * the time of a call grows and throughput stays at the capacity. Contention lets throughput fall. The server continues
 * calls that timed out at the client.
 */

import {
  refuse,
  type Server,
  type SharingOptions,
  type Simulation,
  sharingServer,
} from '../laboratory/servers.ts';
import { constant, exponential } from '../laboratory/service-times.ts';
import { choice, type Fields, number, type Settings } from './fields.ts';

export const SERVER_FIELDS: Fields = {
  service: number('Time of a call', 'ms', [1, 1000, 1], 50, { isLogarithmic: true }),
  knee: number('Knee', 'calls at once', [1, 200, 1], 10, { isLogarithmic: true }),
  contention: number('Loss at 2 × knee', '%', [0, 100, 1], 5),
  spread: choice(
    'Service times',
    { exponential: 'exponential', constant: 'all the same' },
    'exponential',
  ),
  refuseAbove: number('Refuses above', 'in flight', [0, 1000, 1], 0, {
    hint: '0: refuses no call.',
  }),
  timeout: number('Timeout of a call', 's', [1, 30, 1], 5),
};

/** The calls a second that the server can serve. */
export const capacityOf = ({ knee, service }: Settings): number =>
  (1000 * (knee as number)) / (service as number);

/** The speed of each call. With twice the knee in flight, the server has lost the fraction `loss` of its capacity. */
const kneeSpeed =
  (knee: number, loss: number): SharingOptions['speed'] =>
  (calls) => {
    if (calls <= knee) return 1;
    const excess = (calls - knee) / knee;
    return knee / calls / (1 + (loss / (1 - loss)) * excess);
  };

/** At a loss of 100 % two calls above the knee would stop the server. */
const MAX_LOSS = 0.95;

export function kneeServer(simulation: Simulation, settings: Settings): Server {
  const { service, knee, contention, refuseAbove } = settings as Readonly<Record<string, number>>;
  const time = settings.spread === 'constant' ? constant : exponential;
  const server = sharingServer(simulation, {
    service: time(service),
    speed: kneeSpeed(knee, Math.min(MAX_LOSS, contention / 100)),
  });
  if (refuseAbove === 0) return server;
  let inFlight = 0;
  return (onReply) => {
    if (inFlight >= refuseAbove) {
      refuse(simulation.timeline, onReply);
      return;
    }
    inFlight++;
    server((reply) => {
      inFlight--;
      onReply(reply);
    });
  };
}
