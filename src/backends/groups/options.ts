/**
 * `backend: groups({...})`: one limit over distant regions.
 *
 *     const regions = groups({
 *       self: 'eu',
 *       groups: { eu: { weight: 2 }, us: { at: 'https://us.internal:7614' }, ap: { at: 'https://ap.internal:7614' } },
 *       key: process.env.GROUPS_KEY,
 *       listen: { port: 7614 },
 *     });
 *     const api = limiter({ name: 'api', limit: { bucket: { rate: '300/s' } }, backend: regions });
 *
 * Each group has its fraction of the limit in its own bucket, and decides there. A busy group borrows the surplus of
 * idle groups.
 */

import { type Clock, isClock, systemClock } from '../../core/clock.ts';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { HostPort } from '../../core/host-port.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { BackendFactory } from '../backend.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import type { GroupWeight } from './fractions.ts';
import { Group, type GroupsView, type ResolvedGroupsOptions } from './group.ts';
import {
  HttpGroupTransport,
  type HttpTransportOptions,
  startLendingServer,
} from './http-transport.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

/** One group of `groups`. */
export interface GroupOptions {
  /** Weight relative to those of the other groups. Default 1. */
  readonly weight?: number | undefined;
  /** Guaranteed fraction of the limit, from 0 to 1. Default 0. */
  readonly min?: number | undefined;
  /** Base URLs of its processes, or of their load balancer. Not needed for `self`. */
  readonly at?: string | readonly string[] | undefined;
}

/** The groups, and this process's membership. */
export interface GroupsOptions {
  /** Name of this process's group. */
  readonly self: string;
  readonly groups: Readonly<Record<string, GroupOptions>>;
  /** Address at which this process lends to other groups. Default: it does not. */
  readonly listen?: { readonly port: number; readonly host?: string } | undefined;
  /** Shared secret of all groups. */
  readonly key?: string | undefined;
  /** Fraction of its burst that a group reserves for its own calls, from 0 to 1. Default 0.5. */
  readonly reserve?: number | undefined;
  /** The deadline of a borrow request. Default 500 ms. */
  readonly deadline?: Duration | undefined;
  /** Transport between groups. Default: HTTP. */
  readonly transport?: GroupTransport | undefined;
  readonly clock?: Clock | undefined;
}

/** Options of a group whose processes hold its bucket. */
export interface LocalBucketOptions extends GroupsOptions {
  /** The backend that holds the bucket: `peers(...)`. Default: this process. */
  readonly bucket?: BackendFactory | undefined;
}

/** Options of a group whose bucket is on a server. */
export interface RemoteBucketOptions extends GroupsOptions {
  /** The backend that holds the bucket: `redis(client)`. */
  readonly bucket: RemoteBackendFactory;
}

/** This process's membership in its group. */
export interface GroupsMembership {
  /** Returns the tokens borrowed and lent, and the unavailable groups. */
  view(): GroupsView;
  /** Address of the lending server once it listens; rejects if it cannot. Undefined without `listen`. */
  readonly listening: Promise<string | undefined>;
  /** Lends from this process's buckets, for a custom transport. */
  lend(requests: readonly BorrowRequest[]): Promise<number[]>;
  /** Stops borrowing and lending. Limits continue with the group's fraction. */
  close(): Promise<void>;
}

/** Joins a group. @throws {ConfigError} if an option is invalid. */
export function groups(options: RemoteBucketOptions): GroupsMembership & RemoteBackendFactory;
export function groups(options: LocalBucketOptions): GroupsMembership & BackendFactory;
export function groups(
  options: LocalBucketOptions | RemoteBucketOptions,
): GroupsMembership & (RemoteBackendFactory | BackendFactory) {
  const fields = new OptionReader('', options);
  const resolved = readGroupsOptions(fields);
  const expected = 'a backend, such as redis(client) or peers(...)';
  const factory = fields.optional('bucket', isBackendFactory, expected);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const customTransport = fields.optional('transport', isGroupTransport, 'an object with borrow()');
  const http = readHttpTransport(fields, resolved, customTransport !== undefined);
  const listen = readListen(fields);
  fields.finish();

  const httpTransport = customTransport ? undefined : new HttpGroupTransport(http);
  const group = new Group(resolved, customTransport ?? (httpTransport as GroupTransport), clock);
  const opened = listen && startLendingServer(http, listen, (requests) => group.lend(requests));
  const listening = opened ? opened.then(({ address }) => address) : Promise.resolve(undefined);
  listening.catch((error) => {
    const message = `groups: ${resolved.self} cannot lend here: ${errorMessageOf(error)}`;
    emitProcessWarning('GROUPS', message, `${listen?.host}:${listen?.port}`);
  });
  const membership: GroupsMembership = {
    view: () => group.view(),
    listening,
    lend: (requests) => group.lend(requests),
    async close() {
      group.close();
      httpTransport?.close();
      const open = await opened?.catch(() => undefined);
      await open?.close();
    },
  };
  return { ...membership, ...group.createFactory(factory) };
}

const MAX_GROUPS = 100;

/** A group with the base URLs of its processes. */
interface AddressedGroup extends GroupWeight {
  readonly at: readonly string[];
}

interface AddressedGroupsOptions extends ResolvedGroupsOptions {
  readonly groups: ReadonlyMap<string, AddressedGroup>;
}

/** Reads the options that do not depend on the transport. @throws {ConfigError} */
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
    const reader = OptionReader.collecting(`${fields.pathOf('groups')}.${name}`, given[name]);
    const weight = reader.number('weight', { min: 0 }, 1);
    const min = reader.number('min', { min: 0, max: 1 }, 0);
    const at = reader.tryRead(() => readAddresses(reader.get('at') ?? [], reader.pathOf('at')));
    reader.finish();
    return [name, { weight, min, at: at as string[] }];
  });
  return new Map(read);
}

function readAddresses(given: unknown, path: string): string[] {
  const texts = Array.isArray(given) ? given : [given];
  for (const text of texts) {
    const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined;
    if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password) continue;
    const shown = typeof text === 'string' ? text.replace(/\/\/.*@/s, '//') : text; // may contain a password
    throw new ConfigError(path, 'an address such as https://us.internal:7614', shown);
  }
  return texts;
}

/** Pattern of the key, which is sent in an HTTP header: no other characters are allowed there. */
const KEY_PATTERN = /^[\x21-\x7e][\x20-\x7e]{14,}[\x21-\x7e]$/;
const KEY_EXPECTED = 'a secret of at least 16 characters, in ASCII and without spaces around it';

/** Reads the options of the HTTP transport; with a custom transport they are optional. @throws {ConfigError} */
export function readHttpTransport(
  fields: OptionReader,
  { self, groups, deadlineMs }: AddressedGroupsOptions,
  hasTransport = false,
): HttpTransportOptions {
  const lenders = [...groups.keys()].filter((name) => name !== self);
  const key = fields.get('key');
  const isKey = typeof key === 'string' && KEY_PATTERN.test(key);
  const addresses = new Map(lenders.map((name) => [name, groups.get(name)?.at ?? []]));
  fields.tryRead(() => {
    if (isKey || hasTransport) return;
    const shown = key === undefined ? undefined : 'an invalid one'; // a secret is never printed, not even an invalid one
    throw new ConfigError(fields.pathOf('key'), KEY_EXPECTED, shown);
  });
  fields.tryRead(() =>
    readEach([...addresses], ([name, { length }]) => {
      if (length > 0 || hasTransport) return;
      const path = `${fields.pathOf('groups')}.${name}.at`;
      throw new ConfigError(path, 'the base URL of the group', undefined);
    }),
  );
  return { addresses, key: isKey ? key : '', deadlineMs };
}

function readListen(fields: OptionReader): HostPort | undefined {
  const given = fields.get('listen');
  if (given === undefined) return undefined;
  const reader = new OptionReader('listen', given, '{ port, host }');
  const port = reader.number('port', { min: 0, max: 65_535, integer: true });
  const host = reader.optional('host', isNonEmptyString, 'a host') ?? '127.0.0.1';
  reader.finish();
  return { port, host };
}

const isBackendFactory = (value: unknown): value is RemoteBackendFactory | BackendFactory =>
  isRecord(value) && typeof value.isRemote === 'boolean' && typeof value.create === 'function';

const isGroupTransport = (value: unknown): value is GroupTransport =>
  typeof (value as GroupTransport | null)?.borrow === 'function';
