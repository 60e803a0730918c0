/**
 * The section `groups` of a configuration: the options of `sluice/groups`, and where other groups borrow from this daemon.
 *
 *     groups:
 *       self: eu
 *       groups:
 *         eu: { weight: 2 }
 *         us: { at: https://throttle.us.example:7614 }
 *       listen: 0.0.0.0:7614
 *       key: at-least-sixteen-characters
 */

import { systemClock } from '../../core/clock.ts';
import { secretSection, withConfigPath } from '../../core/config-helpers.ts';
import { type ListenAddress, readListenAddresses } from '../../core/listen-address.ts';
import { requireValidName } from '../../core/name.ts';
import { Group, type ResolvedGroupsOptions } from './group.ts';
import type { HttpTransportOptions } from './http-transport.ts';
import { readGroupsOptions, readHttpTransport } from './options.ts';
import type { GroupTransport } from './transport.ts';

export interface GroupsConfig {
  readonly options: ResolvedGroupsOptions;
  readonly http: HttpTransportOptions;
  /** Addresses at which other groups borrow from this daemon. */
  readonly listen: readonly ListenAddress[];
  /** Creates limits only to validate them; it has no transport. */
  readonly dryRunGroup: Group;
}

/** Reads the section. Its values may be secret, so errors omit them. */
export function readGroupsConfig(value: unknown, path: string): GroupsConfig {
  const fields = secretSection(path, value, 'an object with `self` and `groups`');
  // During a reload, the old and the new version of a limit exist at the same time.
  const options = { ...readGroupsOptions(fields), inDaemon: true };
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
  const dryRunGroup = withConfigPath(path, () => new Group(options, NO_TRANSPORT, systemClock));
  return { options, http, listen: listen ?? [], dryRunGroup };
}

const NO_TRANSPORT: GroupTransport = { borrow: async () => [] };
