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
import { ConfigError, reasonOf } from '../../core/errors.ts';
import { Fields, isRecord, readEach } from '../../core/options.ts';
import { warn } from '../../core/process-warning.ts';
import type { ShareMaker } from '../backend.ts';
import type { RemoteShareMaker } from '../remote-backend.ts';
import type { Claimed } from './allotments.ts';
import { HttpDoor, type HttpDoorOptions, type HttpListen, openHttpDoor } from './http-transport.ts';
import { Group, type GroupSetting, type GroupsView } from './membership.ts';
import type { Door, Want } from './transport.ts';

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
  readonly own: string;
  readonly groups: Readonly<Record<string, GroupOptions>>;
  /** Where others can steal from this group. Default: they cannot. */
  readonly listen?: { readonly port: number; readonly host?: string };
  /** A secret that all of them know. */
  readonly key?: string;
  /** What part of its burst a group keeps for its own calls, from 0 to 1. Default 0.5. */
  readonly keep?: number;
  /** A theft that takes longer has failed. Default 500 ms. */
  readonly deadline?: Duration;
  /** How groups reach each other. Default: HTTP. */
  readonly door?: Door;
  readonly clock?: Clock;
}

/** A group whose bucket is kept by its processes. */
export interface OwnBucket extends GroupsOptions {
  /** Who keeps it: `peers(...)`. Default: this process alone. */
  readonly bucket?: ShareMaker;
}

/** A group whose bucket somebody else keeps. */
export interface RemoteBucket extends GroupsOptions {
  /** Who keeps it: `redis(client)`. */
  readonly bucket: RemoteShareMaker;
}

/** This process's place in its group. */
export interface GroupsPlace {
  /** What was stolen and given, and which groups cannot be reached. */
  view(): GroupsView;
  /** Where others can reach it, once it listens; rejects if it cannot. Undefined if it is not to. */
  readonly listening: Promise<string | undefined>;
  /** What others may have of this process's buckets, for a door of your own. */
  give(wants: readonly Want[]): Promise<number[]>;
  /** Steals and gives no more. Limits go on with their group's own part. */
  close(): Promise<void>;
}

/** Takes a place in a group. @throws {ConfigError} if the options make no sense. */
export function groups(options: RemoteBucket): GroupsPlace & RemoteShareMaker;
export function groups(options: OwnBucket): GroupsPlace & ShareMaker;
export function groups(
  options: OwnBucket | RemoteBucket,
): GroupsPlace & (RemoteShareMaker | ShareMaker) {
  const fields = new Fields('', options);
  const setting = readGroupsOptions(fields);
  const maker = fields.optional('bucket', isMaker, 'a share, such as redis(client) or peers(...)');
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const ownDoor = fields.optional('door', isDoor, 'an object with steal()');
  const http = readHttp(fields, setting, ownDoor !== undefined);
  const listen = readListen(fields);
  fields.done();

  const httpDoor = ownDoor ? undefined : new HttpDoor(http);
  const door = ownDoor ?? (httpDoor as HttpDoor);
  const group = new Group(setting, door, clock);
  const opened = listen && openHttpDoor(http, listen, (wants) => group.give(wants));
  const listening = opened ? opened.then(({ address }) => address) : Promise.resolve(undefined);
  listening.catch((error) => {
    const why = `groups: others cannot steal from ${setting.own} here: ${reasonOf(error)}`;
    warn('GROUPS', why, `${listen?.host}:${listen?.port}`);
  });
  const place: GroupsPlace = {
    view: () => group.view(),
    listening,
    give: (wants) => group.give(wants),
    async close() {
      group.close();
      httpDoor?.close();
      const open = await opened?.catch(() => undefined);
      await open?.close();
    },
  };
  return { ...place, ...group.maker(maker) };
}

const GROUPS_MAX = 100;

/** A group, and where its processes can be reached. */
interface Placed extends Claimed {
  readonly at: readonly string[];
}

interface PlacedOptions extends GroupSetting {
  readonly groups: ReadonlyMap<string, Placed>;
}

/** What is said of groups however they reach each other. @throws {ConfigError} */
export function readGroupsOptions(fields: Fields): PlacedOptions {
  const groups = fields.attempt(() => readGroups(fields));
  const own = fields.optional('own', isText, 'the name of one of the groups') ?? '';
  if (groups && !groups.has(own)) {
    fields.complain('own', `one of the groups: ${[...groups.keys()].join(', ')}`);
  }
  const keep = fields.number('keep', { min: 0, max: 1 }, 0.5);
  const deadlineMs = fields.duration('deadline', 500);
  return { own, groups: groups ?? new Map(), keep, deadlineMs };
}

function readGroups(fields: Fields): Map<string, Placed> {
  const given = fields.raw('groups');
  const names = isRecord(given) ? Object.keys(given) : [];
  if (!isRecord(given) || names.length < 2 || names.length > GROUPS_MAX) {
    throw new ConfigError(fields.at('groups'), `2 to ${GROUPS_MAX} groups by name`, given);
  }
  const read = readEach(names, (name): [string, Placed] => {
    const own = Fields.patient(`${fields.at('groups')}.${name}`, given[name]);
    const weight = own.number('weight', { min: 0 }, 1);
    const min = own.number('min', { min: 0, max: 1 }, 0);
    const at = own.attempt(() => readAddresses(own.raw('at') ?? [], own.at('at')));
    own.done();
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
const KEY = /^[\x21-\x7e][\x20-\x7e]{14,}[\x21-\x7e]$/;
const KEY_EXPECTED = 'a secret of at least 16 characters, in ASCII and without spaces around it';

/** How groups reach each other over HTTP; with another door, what of that was said anyway. @throws {ConfigError} */
export function readHttp(
  fields: Fields,
  { own, groups, deadlineMs }: PlacedOptions,
  hasDoor = false,
): HttpDoorOptions {
  const others = [...groups.keys()].filter((name) => name !== own);
  const key = fields.raw('key');
  const isKey = typeof key === 'string' && KEY.test(key);
  fields.attempt(() => {
    if (isKey || hasDoor) return;
    const shown = key === undefined ? undefined : 'one that is not'; // it may be nearly right: a secret
    throw new ConfigError(fields.at('key'), KEY_EXPECTED, shown);
  });
  const unreachable = hasDoor ? [] : others.filter((name) => groups.get(name)?.at.length === 0);
  fields.attempt(() =>
    readEach(unreachable, (name) => {
      const path = `${fields.at('groups')}.${name}.at`;
      throw new ConfigError(path, 'where it can be reached', undefined);
    }),
  );
  const addresses = new Map(others.map((name) => [name, groups.get(name)?.at ?? []]));
  return { addresses, key: isKey ? key : '', deadlineMs };
}

function readListen(fields: Fields): HttpListen | undefined {
  const given = fields.raw('listen');
  if (given === undefined) return undefined;
  const own = new Fields('listen', given);
  const port = own.number('port', { min: 0, max: 65_535, whole: true });
  const host = own.optional('host', isText, 'a host') ?? '127.0.0.1';
  own.done();
  return { port, host };
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

const isMaker = (value: unknown): value is RemoteShareMaker | ShareMaker =>
  isRecord(value) && typeof value.isRemote === 'boolean' && typeof value.make === 'function';

const isDoor = (value: unknown): value is Door =>
  typeof (value as Door | null)?.steal === 'function';
