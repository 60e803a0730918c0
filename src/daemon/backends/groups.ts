/**
 * A daemon's place in its group: limits that say so are decided by the group's part, and by what it steals from other groups.
 *
 * It waits for nobody: whoever is out of reach is told of, and until it is back the group lives on its own part.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { BackendFactory } from '../../backends/backend.ts';
import { createLendingServer, HttpGroupTransport } from '../../backends/groups/http-transport.ts';
import { Group, type GroupsView } from '../../backends/groups/membership.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import type { GroupsConfig } from '../config/groups.ts';

/** How often it is looked who can be reached. */
const POLL_MS: Millis = 1000;

/** What a daemon shows of its groups. */
export interface GroupsStatus extends GroupsView {
  /** Its own group's name. */
  readonly id: string;
}

export class GroupMembership {
  readonly #group: Group;
  readonly #transport: HttpGroupTransport;
  /** It never listens: connections are handed to it. */
  readonly #server: Server;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #unavailable = new Set<string>();
  #connections = 0;
  #cancelPoll = (): void => {};

  constructor({ options, http }: GroupsConfig, { clock, log }: { clock: Clock; log: Log }) {
    this.#clock = clock;
    this.#log = log;
    this.#transport = new HttpGroupTransport(http);
    this.#group = new Group(options, this.#transport, clock);
    this.#server = createLendingServer(http, (wants) => this.#group.lend(wants));
    this.#server.emit('listening'); // from then on it watches who is slow
    this.#schedulePoll();
  }

  /** Makes limits whose bucket is kept as `keeper` says: for the group by others, or by this daemon alone. */
  backendFactory(
    bucketBackend?: RemoteBackendFactory | BackendFactory,
  ): RemoteBackendFactory | BackendFactory {
    return this.#group.createFactory(bucketBackend);
  }

  /** Somebody comes to steal. */
  accept(socket: Socket, maxConnections: number): void {
    if (this.#connections >= maxConnections) return void socket.destroy();
    this.#connections++;
    socket.once('close', () => this.#connections--);
    this.#server.emit('connection', socket);
  }

  view(): GroupsView {
    return this.#group.view();
  }

  status(): GroupsStatus {
    const view = this.view();
    return { id: view.self, ...view };
  }

  /** Steals no more, and gives no more. */
  close(): void {
    this.#cancelPoll();
    this.#group.close();
    this.#transport.close();
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /** Tells who is out of reach since the last look, and who is back. */
  #poll(): void {
    for (const { group, reason } of this.view().others) {
      const wasOut = this.#unavailable.has(group);
      if (reason !== undefined && !wasOut) {
        this.#unavailable.add(group);
        this.#log('warn', 'group unavailable', { group, reason });
      } else if (reason === undefined && wasOut) {
        this.#unavailable.delete(group);
        this.#log('info', 'group available again', { group });
      }
    }
    this.#schedulePoll();
  }

  #schedulePoll(): void {
    const at = this.#clock.now() + POLL_MS;
    this.#cancelPoll = schedule(this.#clock, at, () => this.#poll(), false);
  }
}
