/**
 * `share: groups({...})`: a limit over regions far apart.
 *
 *     const regions = groups({
 *       own: 'eu',
 *       groups: { eu: { weight: 2 }, us: { at: 'https://us.internal:7614' }, ap: { at: 'https://ap.internal:7614' } },
 *       key: process.env.GROUPS_KEY,
 *       listen: { port: 7614 },
 *     });
 *     const api = limiter({ name: 'api', limit: { bucket: { rate: '300/s' } }, share: regions });
 *
 * Each group has its part of the limit in a bucket of its own, and calls are decided there. A busy group steals from
 * quieter ones what they do not need.
 */

import { type Clock, isClock, systemClock } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { BackendFactory } from '../backend.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import type { GroupWeight } from './allotments.ts';
import {
  HttpGroupTransport,
  type HttpListenOptions,
  type HttpTransportOptions,
  startLendingServer,
} from './http-transport.ts';
import { Group, type GroupsView, type ResolvedGroupsOptions } from './membership.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

/** One of the groups. */
export interface GroupOptions {
  /** How much of the limit compared to others. Default 1. */
  readonly weight?: number;
  /** At least this part of the limit, from 0 to 1. Default 0. */
  readonly min?: number;
  /** Where its processes can be reached: any of them, or what stands before them. Not for the own one. */
  readonly at?: string | readonly string[];
}

/** All groups, and how this process takes part. */
export interface GroupsOptions {
  /** Which of them this process is of. */
  readonly self: string;
  readonly groups: Readonly<Record<string, GroupOptions>>;
  /** Where others can steal from this group. Default: they cannot. */
  readonly listen?: { readonly port: number; readonly host?: string };
  /** A secret that all of them know. */
  readonly key?: string;
  /** What part of its burst a group keeps for its own calls, from 0 to 1. Default 0.5. */
  readonly reserve?: number;
  /** A theft that takes longer has failed. Default 500 ms. */
  readonly deadline?: Duration;
  /** How groups reach each other. Default: HTTP. */
  readonly transport?: GroupTransport;
  readonly clock?: Clock;
}

/** A group whose bucket is kept by its processes. */
export interface LocalBucketOptions extends GroupsOptions {
  /** Who keeps it: `peers(...)`. Default: this process alone. */
  readonly bucket?: BackendFactory;
}

/** A group whose bucket somebody else keeps. */
export interface RemoteBucketOptions extends GroupsOptions {
  /** Who keeps it: `redis(client)`. */
  readonly bucket: RemoteBackendFactory;
}

/** This process's place in its group. */
export interface GroupsMembership {
  /** What was stolen and given, and which groups cannot be reached. */
  view(): GroupsView;
  /** Where others can reach it, once it listens; rejects if it cannot. Undefined if it is not to. */
  readonly listening: Promise<string | undefined>;
  /** What others may have of this process's buckets, for a door of your own. */
  lend(wants: readonly BorrowRequest[]): Promise<number[]>;
  /** Steals and gives no more. Limits go on with their group's own part. */
  close(): Promise<void>;
}

/** Takes a place in a group. @throws {ConfigError} if the options make no sense. */
export function groups(options: RemoteBucketOptions): GroupsMembership & RemoteBackendFactory;
export function groups(options: LocalBucketOptions): GroupsMembership & BackendFactory;
export function groups(
  options: LocalBucketOptions | RemoteBucketOptions,
): GroupsMembership & (RemoteBackendFactory | BackendFactory) {
  const fields = new OptionReader('', options);
  const setting = readGroupsOptions(fields);
  const factory = fields.optional(
    'bucket',
    isBackendFactory,
    'a backend, such as redis(client) or peers(...)',
  );
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const ownTransport = fields.optional('transport', isGroupTransport, 'an object with borrow()');
  const http = readHttpTransport(fields, setting, ownTransport !== undefined);
  const listen = readListen(fields);
  fields.finish();

  const httpTransport = ownTransport ? undefined : new HttpGroupTransport(http);
  const transport = ownTransport ?? (httpTransport as HttpGroupTransport);
  const group = new Group(setting, transport, clock);
  const opened = listen && startLendingServer(http, listen, (wants) => group.lend(wants));
  const listening = opened ? opened.then(({ address }) => address) : Promise.resolve(undefined);
  listening.catch((error) => {
    const why = `groups: others cannot borrow from ${setting.self} here: ${errorMessageOf(error)}`;
    emitProcessWarning('GROUPS', why, `${listen?.host}:${listen?.port}`);
  });
  const place: GroupsMembership = {
    view: () => group.view(),
    listening,
    lend: (wants) => group.lend(wants),
    async close() {
      group.close();
      httpTransport?.close();
      const open = await opened?.catch(() => undefined);
      await open?.close();
    },
  };
  return { ...place, ...group.createFactory(factory) };
}

const MAX_GROUPS = 100;

/** A group, and where its processes can be reached. */
interface AddressedGroup extends GroupWeight {
  readonly at: readonly string[];
}

interface AddressedGroupsOptions extends ResolvedGroupsOptions {
  readonly groups: ReadonlyMap<string, AddressedGroup>;
}

/** What is said of groups however they reach each other. @throws {ConfigError} */
export function readGroupsOptions(fields: OptionReader): AddressedGroupsOptions {
  const groups = fields.tryRead(() => readGroups(fields));
  const self = fields.optional('self', isNonEmptyString, 'the name of one of the groups') ?? '';
  if (groups && !groups.has(self)) {
    fields.report('self', `one of the groups: ${[...groups.keys()].join(', ')}`);
  }
  const reserve = fields.number('reserve', { min: 0, max: 1 }, 0.5);
  const deadlineMs = fields.duration('deadline', 500);
  return { self, groups: groups ?? new Map(), reserve, deadlineMs };
}

function readGroups(fields: OptionReader): Map<string, AddressedGroup> {
  const given = fields.get('groups');
  const names = isRecord(given) ? Object.keys(given) : [];
  if (!isRecord(given) || names.length < 2 || names.length > MAX_GROUPS) {
    throw new ConfigError(fields.pathOf('groups'), `2 to ${MAX_GROUPS} groups by name`, given);
  }
  const read = readEach(names, (name): [string, AddressedGroup] => {
    const own = OptionReader.collecting(`${fields.pathOf('groups')}.${name}`, given[name]);
    const weight = own.number('weight', { min: 0 }, 1);
    const min = own.number('min', { min: 0, max: 1 }, 0);
    const at = own.tryRead(() => readAddresses(own.get('at') ?? [], own.pathOf('at')));
    own.finish();
    return [name, { weight, min, at: at as string[] }];
  });
  return new Map(read);
}

function readAddresses(given: unknown, path: string): string[] {
  const texts = Array.isArray(given) ? given : [given];
  for (const text of texts) {
    const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined;
    if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password) continue;
    const shown = typeof text === 'string' ? text.replace(/\/\/.*@/s, '//') : text; // it may hold a password
    throw new ConfigError(path, 'an address such as https://us.internal:7614', shown);
  }
  return texts;
}

/** It travels in a header, which takes no more than this. */
const KEY_PATTERN = /^[\x21-\x7e][\x20-\x7e]{14,}[\x21-\x7e]$/;
const KEY_EXPECTED = 'a secret of at least 16 characters, in ASCII and without spaces around it';

/** How groups reach each other over HTTP; with another door, what of that was said anyway. @throws {ConfigError} */
export function readHttpTransport(
  fields: OptionReader,
  { self, groups, deadlineMs }: AddressedGroupsOptions,
  hasTransport = false,
): HttpTransportOptions {
  const others = [...groups.keys()].filter((name) => name !== self);
  const key = fields.get('key');
  const isKey = typeof key === 'string' && KEY_PATTERN.test(key);
  fields.tryRead(() => {
    if (isKey || hasTransport) return;
    const shown = key === undefined ? undefined : 'one that is not'; // it may be nearly right: a secret
    throw new ConfigError(fields.pathOf('key'), KEY_EXPECTED, shown);
  });
  const unreachable = hasTransport
    ? []
    : others.filter((name) => groups.get(name)?.at.length === 0);
  fields.tryRead(() =>
    readEach(unreachable, (name) => {
      const path = `${fields.pathOf('groups')}.${name}.at`;
      throw new ConfigError(path, 'where it can be reached', undefined);
    }),
  );
  const addresses = new Map(others.map((name) => [name, groups.get(name)?.at ?? []]));
  return { addresses, key: isKey ? key : '', deadlineMs };
}

function readListen(fields: OptionReader): HttpListenOptions | undefined {
  const given = fields.get('listen');
  if (given === undefined) return undefined;
  const own = new OptionReader('listen', given);
  const port = own.number('port', { min: 0, max: 65_535, integer: true });
  const host = own.optional('host', isNonEmptyString, 'a host') ?? '127.0.0.1';
  own.finish();
  return { port, host };
}

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';

const isBackendFactory = (value: unknown): value is RemoteBackendFactory | BackendFactory =>
  isRecord(value) && typeof value.isRemote === 'boolean' && typeof value.create === 'function';

const isGroupTransport = (value: unknown): value is GroupTransport =>
  typeof (value as GroupTransport | null)?.borrow === 'function';
