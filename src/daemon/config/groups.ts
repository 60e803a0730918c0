/**
 * Groups that have a limit together over regions far apart, as a configuration spells them: the options of
 * `sluice/groups`, and where others steal from this daemon.
 *
 *     groups:
 *       self: eu
 *       groups:
 *         eu: { weight: 2 }
 *         us: { at: https://throttle.us.example:7614 }
 *       listen: 0.0.0.0:7614
 *       key: at-least-sixteen-characters
 */

import type { BackendFactory } from '../../backends/backend.ts';
import type { HttpTransportOptions } from '../../backends/groups/http-transport.ts';
import { Group, type ResolvedGroupsOptions } from '../../backends/groups/membership.ts';
import { readGroupsOptions, readHttpTransport } from '../../backends/groups/options.ts';
import type { GroupTransport } from '../../backends/groups/transport.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { systemClock } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { type ListenAddress, readListenAddresses } from './listen.ts';

export interface GroupsConfig {
  readonly options: ResolvedGroupsOptions;
  readonly http: HttpTransportOptions;
  /** Where others steal from this daemon. */
  readonly listen: readonly ListenAddress[];
  /** What part of a limit the own group has. */
  readonly fraction: number;
  /** What was written: a change of it takes a restart. */
  readonly source: string;
  /** Makes limits to see whether they can be; nobody is stolen from. */
  dryRunFactory(
    bucketBackend?: RemoteBackendFactory | BackendFactory,
  ): RemoteBackendFactory | BackendFactory;
}

/** Reads the section; undefined if there is none. What it holds is secret, and is not shown. */
export function readGroups(value: unknown, path: string): GroupsConfig | undefined {
  if (value === undefined || value === false) return undefined;
  if (!isRecord(value)) {
    throw new ConfigError(path, 'an object with `self` and `groups`', 'something else');
  }
  const fields = OptionReader.collecting(path, value);
  // A limit that a reload changes is there twice for a moment.
  const options = { ...readGroupsOptions(fields), replaces: true };
  for (const name of options.groups.keys()) {
    fields.tryRead(() => requireValidName(name, `${fields.pathOf('groups')}.${name}`));
  }
  if (!fields.has('key')) {
    fields.report('key', 'a secret that all groups know (or SLUICE_GROUPS_KEY)');
  }
  const http = readHttpTransport(fields, options);
  const listen = fields.tryRead(() =>
    readListenAddresses(fields.get('listen') ?? false, fields.pathOf('listen')),
  );
  fields.finish();
  const tried = createDryRunGroup(options, path);
  const { part } = tried.view();
  const dryRunFactory: GroupsConfig['dryRunFactory'] = (bucketBackend) =>
    tried.createFactory(bucketBackend);
  return {
    options,
    http,
    listen: listen ?? [],
    fraction: part,
    source: JSON.stringify(value),
    dryRunFactory,
  };
}

function createDryRunGroup(options: ResolvedGroupsOptions, path: string): Group {
  try {
    return new Group(options, NO_TRANSPORT, systemClock);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw error.prefixedWith(path);
  }
}

/** For limits that nobody asks. */
const NO_TRANSPORT: GroupTransport = { borrow: async () => [] };
