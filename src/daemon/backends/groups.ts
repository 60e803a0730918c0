/**
 * A daemon's place in its group: limits that say so are decided by the group's part, and by what it steals from other groups.
 *
 * It waits for nobody: whoever is out of reach is told of, and until it is back the group lives on its own part.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { ShareMaker } from '../../backends/backend.ts';
import { HttpDoor, httpDoorServer } from '../../backends/groups/http-transport.ts';
import { Group, type GroupsView } from '../../backends/groups/membership.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import type { GroupsConfig } from '../config/groups.ts';

/** How often it is looked who can be reached. */
const LOOK_MS: Millis = 1000;

/** What a daemon shows of its groups. */
export interface GroupsShown extends GroupsView {
  /** Its own group's name. */
  readonly id: string;
}

export class GroupsPlace {
  readonly #group: Group;
  readonly #door: HttpDoor;
  /** It never listens: connections are handed to it. */
  readonly #server: Server;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #outOfReach = new Set<string>();
  #connections = 0;
  #cancelLook = (): void => {};

  constructor({ options, http }: GroupsConfig, { clock, log }: { clock: Clock; log: Log }) {
    this.#clock = clock;
    this.#log = log;
    this.#door = new HttpDoor(http);
    this.#group = new Group(options, this.#door, clock);
    this.#server = httpDoorServer(http, (wants) => this.#group.give(wants));
    this.#server.emit('listening'); // from then on it watches who is slow
    this.#lookLater();
  }

  /** Makes limits whose bucket is kept as `keeper` says: for the group by others, or by this daemon alone. */
  share(keeper?: RemoteShareMaker | ShareMaker): RemoteShareMaker | ShareMaker {
    return this.#group.maker(keeper);
  }

  /** Somebody comes to steal. */
  accept(socket: Socket, connectionsMax: number): void {
    if (this.#connections >= connectionsMax) return void socket.destroy();
    this.#connections++;
    socket.once('close', () => this.#connections--);
    this.#server.emit('connection', socket);
  }

  view(): GroupsView {
    return this.#group.view();
  }

  shown(): GroupsShown {
    const view = this.view();
    return { id: view.own, ...view };
  }

  /** Steals no more, and gives no more. */
  close(): void {
    this.#cancelLook();
    this.#group.close();
    this.#door.close();
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /** Tells who is out of reach since the last look, and who is back. */
  #look(): void {
    for (const { group, reason } of this.view().others) {
      const wasOut = this.#outOfReach.has(group);
      if (reason !== undefined && !wasOut) {
        this.#outOfReach.add(group);
        this.#log('warn', 'group out of reach', { group, reason });
      } else if (reason === undefined && wasOut) {
        this.#outOfReach.delete(group);
        this.#log('info', 'group in reach again', { group });
      }
    }
    this.#lookLater();
  }

  #lookLater(): void {
    const at = this.#clock.now() + LOOK_MS;
    this.#cancelLook = alarm(this.#clock, at, () => this.#look(), false);
  }
}
