/**
 * The groups backend in a daemon: a limit is decided by its group's fraction, and by what the group borrows from others.
 *
 * It waits for no other group. An unavailable group is logged; until it is back, this group has only its own fraction.
 */

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import type { MetricFamily } from '../../core/metric-family.ts';
import type {
  AnyBackendFactory,
  BackendModule,
  BackendSection,
  RunningBackend,
} from '../daemon-backend.ts';
import { type GroupsConfig, readGroupsConfig } from './daemon-config.ts';
import { type GroupsStatus, groupsMetrics, groupsPage } from './daemon-view.ts';
import { Group } from './group.ts';
import { BORROW_PATH, createLendingServer, HttpGroupTransport } from './http-transport.ts';

/** Interval of the check for changes that are logged. */
const POLL_MS: Millis = 1000;

const NAME = 'groups';

export const groupsModule: BackendModule = {
  name: NAME,
  readSection,
  wrapper: { excludes: ['pool'] },
  page: groupsPage,
  overrides: [{ field: 'key', variable: 'SLUICE_GROUPS_KEY', kind: 'text' }],
};

function readSection(value: unknown, path: string): BackendSection {
  const config = readGroupsConfig(value, path);
  const { dryRunGroup, listen } = config;
  return {
    limit: {
      name: NAME,
      identity: `${NAME} ${dryRunGroup.view().fraction}`,
      view: true,
      note: 'shared with other groups',
      dryRun: (inner) => dryRunGroup.createFactory(inner),
    },
    identity: JSON.stringify(value),
    listener: {
      addresses: listen,
      example: {
        path: BORROW_PATH,
        flags: `-H "Authorization: Bearer $SLUICE_GROUPS_KEY" -d '{"requests":[]}'`,
      },
    },
    start: async (context) => new RunningGroups(config, context),
  };
}

class RunningGroups implements RunningBackend {
  readonly #group: Group;
  readonly #transport: HttpGroupTransport;
  /** Never listens itself: the daemon hands it connections. */
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
    this.#server = createLendingServer(http, (requests) => this.#group.lend(requests));
    this.#server.emit('listening'); // starts Node's check for slow connections
    this.#schedulePoll();
  }

  /** Limits whose bucket is kept by `inner`, or by this daemon alone. */
  createFactory(inner?: AnyBackendFactory): AnyBackendFactory {
    return this.#group.createFactory(inner);
  }

  accept(socket: Socket, maxConnections: number): void {
    if (this.#connections >= maxConnections) return void socket.destroy();
    this.#connections++;
    socket.once('close', () => this.#connections--);
    this.#server.emit('connection', socket);
  }

  view(): GroupsStatus {
    const view = this.#group.view();
    return { id: view.self, ...view };
  }

  metrics(): readonly MetricFamily[] {
    return groupsMetrics(this.#group.view());
  }

  close(): void {
    this.#cancelPoll();
    this.#group.close();
    this.#transport.close();
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /** Logs which groups became unavailable or available since the last call. */
  #poll(): void {
    for (const { group, reason } of this.#group.view().others) {
      const wasUnavailable = this.#unavailable.has(group);
      if (reason !== undefined && !wasUnavailable) {
        this.#unavailable.add(group);
        this.#log('warn', 'group unavailable', { group, reason });
      } else if (reason === undefined && wasUnavailable) {
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
