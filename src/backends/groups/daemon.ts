/**
 * The groups backend in a daemon: decides a limit by its group's fraction and the tokens borrowed from other groups.
 *
 * It never waits for another group. An unavailable group is logged; meanwhile this group has only its fraction.
 */

import { type Millis, schedule } from '../../core/clock.ts';
import type {
  BackendModule,
  BackendSection,
  BackendStartContext,
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
    start: async (context) => runGroups(config, context),
  };
}

function runGroups(
  { options, http }: GroupsConfig,
  { clock, log }: Pick<BackendStartContext, 'clock' | 'log'>,
): RunningBackend {
  const transport = new HttpGroupTransport(http);
  const group = new Group(options, transport, clock);
  /** A server that does not listen: the daemon passes connections to it. */
  const lending = createLendingServer(http, (requests) => group.lend(requests));
  const { server } = lending;
  server.emit('listening'); // starts Node's check for slow connections
  const unavailable = new Set<string>();
  let connections = 0;
  let cancelPoll = (): void => {};

  /** Logs which groups became unavailable or available since the last call. */
  const logChanges = (): void => {
    for (const { group: name, reason } of group.view().others) {
      const wasUnavailable = unavailable.has(name);
      if (reason !== undefined && !wasUnavailable) {
        unavailable.add(name);
        log('warn', 'group unavailable', { group: name, reason });
      } else if (reason === undefined && wasUnavailable) {
        unavailable.delete(name);
        log('info', 'group available again', { group: name });
      }
    }
  };
  const schedulePoll = (): void => {
    cancelPoll = schedule(clock, clock.now() + POLL_MS, poll, false);
  };
  const poll = (): void => {
    logChanges();
    schedulePoll();
  };
  schedulePoll();
  return {
    createFactory: (inner) => group.createFactory(inner),
    accept(socket, maxConnections) {
      if (connections >= maxConnections && !lending.closeUnauthenticated())
        return void socket.destroy();
      connections++;
      socket.once('close', () => connections--);
      server.emit('connection', socket);
    },
    view(): GroupsStatus {
      const view = group.view();
      return { id: view.self, ...view };
    },
    metrics: () => groupsMetrics(group.view()),
    close() {
      cancelPoll();
      group.close();
      transport.close();
      server.close();
      server.closeAllConnections();
    },
  };
}
