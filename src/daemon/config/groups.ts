/**
 * Groups that have a limit together over regions far apart, as a configuration spells them: the options of
 * `sluice/groups`, and where others steal from this daemon.
 *
 *     groups:
 *       own: eu
 *       groups:
 *         eu: { weight: 2 }
 *         us: { at: https://throttle.us.example:7614 }
 *       listen: 0.0.0.0:7614
 *       key: at-least-sixteen-characters
 */

import type { ShareMaker } from '../../backends/backend.ts';
import type { HttpDoorOptions } from '../../backends/groups/http-transport.ts';
import { Group, type GroupSetting } from '../../backends/groups/membership.ts';
import { readGroupsOptions, readHttp } from '../../backends/groups/options.ts';
import type { Door } from '../../backends/groups/transport.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { systemClock } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireName } from '../../core/name.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { type Listen, readListens } from './listen.ts';

export interface GroupsConfig {
  readonly options: GroupSetting;
  readonly http: HttpDoorOptions;
  /** Where others steal from this daemon. */
  readonly listen: readonly Listen[];
  /** What part of a limit the own group has. */
  readonly part: number;
  /** What was written: a change of it takes a restart. */
  readonly text: string;
  /** Makes limits to see whether they can be; nobody is stolen from. */
  trial(keeper?: RemoteShareMaker | ShareMaker): RemoteShareMaker | ShareMaker;
}

/** Reads the section; undefined if there is none. What it holds is secret, and is not shown. */
export function readGroups(value: unknown, path: string): GroupsConfig | undefined {
  if (value === undefined || value === false) return undefined;
  if (!isRecord(value)) {
    throw new ConfigError(path, 'an object with `own` and `groups`', 'something else');
  }
  const fields = Fields.patient(path, value);
  // A limit that a reload changes is there twice for a moment.
  const options = { ...readGroupsOptions(fields), replaces: true };
  for (const name of options.groups.keys()) {
    fields.attempt(() => requireName(name, `${fields.at('groups')}.${name}`));
  }
  if (!fields.has('key')) {
    fields.complain('key', 'a secret that all groups know (or SLUICE_GROUPS_KEY)');
  }
  const http = readHttp(fields, options);
  const listen = fields.attempt(() =>
    readListens(fields.raw('listen') ?? false, fields.at('listen')),
  );
  fields.done();
  const tried = groupOf(options, path);
  const { part } = tried.view();
  const trial: GroupsConfig['trial'] = (keeper) => tried.maker(keeper);
  return { options, http, listen: listen ?? [], part, text: JSON.stringify(value), trial };
}

function groupOf(options: GroupSetting, path: string): Group {
  try {
    return new Group(options, NO_DOOR, systemClock);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw error.within(path);
  }
}

/** For limits that nobody asks. */
const NO_DOOR: Door = { steal: async () => [] };
