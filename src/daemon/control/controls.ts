/**
 * Bans, overrides and resets that operators set at run time, over any protocol.
 *
 *     HTTP, RESP ──▶ Controls ──▶ ControlTable ──▶ routes: banned, or another limiter for the key
 *                                     ├──▶ OverrideLimiters: the key's consumption is copied
 *                                     ├──▶ OverrideLimiters: the key's consumption is taken along
 *                                     └──▶ journal: every change to disk
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { limitNames } from '../config/limit-names.ts';
import type { LimitConfig } from '../config/limits.ts';
import { addressKeyOf, matchedKeyOf } from '../keys/canonical-key.ts';
import type { LimiterEntry } from '../router/limiter-registry.ts';
import type { Router } from '../router/router.ts';
import type { AppliedOverride, RouteControls } from '../router/routes.ts';
import type { SharingRules } from './control-auth.ts';
import type { ControlJournal, SaveResult } from './control-journal.ts';
import {
  binaryKeyOf,
  type ControlId,
  type ControlKey,
  type ControlRecord,
  controlPatternOf,
  idOf,
  isControlRecord,
  readExactKey,
  readExpiry,
  readKey,
  recordAt,
  removalOf,
  withinMaxDuration,
} from './control-record.ts';
import { ControlTable } from './control-table.ts';
import { forgetKey, type ResetResult } from './key-reset.ts';
import { type OverrideContext, OverrideLimiters } from './override-limiters.ts';
import { readOverrideRule, validRule } from './override-rule.ts';
import { PeerControlLog } from './peer-control-log.ts';

/** The fields of a request, as parsed from a query, a form, JSON or RESP. */
export type ControlFields = Readonly<Record<string, unknown>>;

/** How long peers can learn of a reset. A daemon that is unavailable for longer keeps the consumption it knows. */
const RESET_SHARED_MS: Millis = 30_000;

/** The peer that has sent records, and why they are rejected, if they are. */
export interface Sender {
  readonly peer: string;
  readonly problem?: string | undefined;
}

const NOT_SHARED = 'peers do not share its limit here';
const UNUSABLE = 'no limit here can have it';

export interface ControlsContext extends OverrideContext, SharingRules {
  readonly clock: Clock;
  /** Called with records that were set here, for peers. */
  readonly share?: (records: readonly ControlRecord[]) => void;
  /** Why peers do not get a record; undefined if they do. */
  readonly sharingProblemOf?: (record: ControlRecord) => string | undefined;
  /** Where every change is written. */
  readonly journal: Pick<ControlJournal, 'add' | 'saved'>;
}

export class Controls implements RouteControls {
  readonly #context: ControlsContext;
  readonly #table: ControlTable;
  #router: Router | undefined;
  readonly #startedAt: Millis;
  #lastSetAt: Millis = 0;
  readonly #overrides: OverrideLimiters;
  readonly #peerLog: PeerControlLog;

  constructor(context: ControlsContext) {
    this.#context = context;
    this.#overrides = new OverrideLimiters(context, () => this.#router);
    this.#startedAt = context.clock.now();
    this.#peerLog = new PeerControlLog(context.log, context.clock);
    this.#table = new ControlTable(context.clock, {
      onSet: (record, replaced) => this.#overrides.begin(record, replaced),
      onEnd: (record) => this.#overrides.end(record),
      onChange: (onlyKey) => this.#onChange(onlyKey),
    });
  }

  /** The router whose routes these controls change. */
  attach(router: Router): void {
    this.#router = router;
  }

  // For operators

  /** `{ key, for, note }`: denies a key, or all keys of a pattern. @throws {ConfigError} */
  ban(given: ControlFields): ControlRecord {
    const fields = new OptionReader('', given);
    const target = readKey(fields.get('key'));
    controlPatternOf(target);
    const { forMs, note } = readExpiry(fields);
    fields.finish();
    return this.#set({ kind: 'ban', ...target, note }, forMs);
  }

  /** `{ key }`: false if it is not banned. @throws {ConfigError} */
  unban(given: ControlFields): boolean {
    const fields = new OptionReader('', given);
    const target = readKey(fields.get('key'));
    fields.finish();
    return this.#remove({ kind: 'ban', ...target });
  }

  /** `{ key, limit, rate, burst, rule, for, note }`: another rule for one key. @throws as `ban` */
  override(given: ControlFields): ControlRecord {
    const fields = new OptionReader('', given);
    const target = readExactKey(fields.get('key'));
    if (this.#table.banOf(binaryKeyOf(target)))
      throw new ConfigError('key', 'a key that is not banned: unban it first', target.key);
    const limit = this.#limitOf(fields, target);
    if (limit.per === 'limit' && fields.get('limit') === undefined) {
      const expected = `a key that a limit counts by itself (per: key): only ${limit.name} applies to this one, with one count for all keys`;
      throw new ConfigError('key', expected, target.key);
    }
    if (limit.per === 'limit')
      fields.throwFor('limit', 'a limit that counts each key by itself (per: key)');
    const rule = readOverrideRule(fields, limit);
    const { forMs, note } = readExpiry(fields);
    fields.finish();
    return this.#set({ kind: 'override', ...target, limit: limit.name, rule, note }, forMs);
  }

  /** `{ key, limit }`: false if there is none. @throws {ConfigError} */
  removeOverride(given: ControlFields): boolean {
    const fields = new OptionReader('', given);
    const target = readExactKey(fields.get('key'));
    const named = fields.get('limit');
    fields.finish();
    const overrides = this.#table.active.filter(
      (record) =>
        record.kind === 'override' &&
        addressKeyOf(binaryKeyOf(record)) === addressKeyOf(binaryKeyOf(target)) &&
        (named === undefined || record.limit === named),
    );
    for (const record of overrides) this.#remove(record);
    return overrides.length > 0;
  }

  /** Why an override that was just set has no effect, or not all of it. */
  async warningsOf(record: ControlRecord): Promise<readonly string[]> {
    const key = binaryKeyOf(record);
    const routed = this.#router?.route({ key, cost: 1 });
    const isListed = routed?.route.staticVerdict?.pattern !== undefined;
    const config = this.#overrides.limitOf(record);
    const isExempt = config !== undefined && config.allow.best(matchedKeyOf(key)) >= 0;
    const ineffective = isListed
      ? [`the override has no effect: ${this.#router?.explain(routed, key).summary}`]
      : isExempt
        ? [`the override has no effect: limit ${config.name}'s allow list has the key`]
        : [];
    return [...ineffective, ...(await this.#overrides.problemsOf(record))];
  }

  /** `{ key, limit }`: forgets what a key has consumed, in one limit or in all. @throws {ConfigError} */
  async reset(given: ControlFields): Promise<ResetResult> {
    const fields = new OptionReader('', given);
    const target = readExactKey(fields.get('key'));
    const limit =
      fields.get('limit') === undefined ? undefined : this.#limitOf(fields, target).name;
    fields.finish();
    const until = this.#context.clock.now() + RESET_SHARED_MS;
    const id = { kind: 'reset', ...target, limit } as const;
    const setAt = this.#nextSetAt(this.#table.recordOf(id)?.setAt);
    const record = { ...id, until, setAt, by: this.#context.operator()?.id };
    this.#put([record]); // at the instant at which limits of this process forget the key
    const result = await forgetKey(this.#context, this.#router, record);
    const { reset, failed, shared } = result;
    if (shared && reset.length + failed.length === 0)
      throw new ConfigError('limit', `${shared.join(' or ')}, to reset ${ONE_COUNT}`, undefined);
    if (reset.length > 0)
      this.#context.log('info', 'key reset', { key: target.key, limits: reset.join() });
    this.#share(record);
    const unshared = this.sharingProblemOf(record);
    return unshared === undefined ? result : { ...result, unshared };
  }

  /** Resolves when overrides in Redis or etcd have taken over what their keys had consumed. */
  copied(): Promise<void> {
    return this.#overrides.copied();
  }

  /** Resolves when all changes so far are on disk, or with the reason why they are not. */
  saved(): Promise<SaveResult> {
    return this.#context.journal.saved();
  }

  /** Why the other daemons of the fleet do not get a control; undefined if they do, or if there is no fleet. */
  sharingProblemOf(record: ControlRecord): string | undefined {
    return this.#context.sharingProblemOf?.(record);
  }

  /** Bans and overrides in effect. */
  list(): readonly ControlRecord[] {
    return this.#table.active;
  }

  get counts(): ControlTable['counts'] {
    return this.#table.counts;
  }

  // For snapshots and peers

  get records(): readonly ControlRecord[] {
    return this.#table.records;
  }

  /** Takes over records of a snapshot or of a peer; the newer of two wins. What is invalid is left out. */
  merge(records: readonly unknown[], sender?: Sender): void {
    const now = this.#context.clock.now();
    const newer = records
      .filter(isControlRecord)
      .map((record) => recordAt(withinMaxDuration(record, now), now))
      .filter((record) => this.#table.isNewer(record));
    const received = sender ? newer.map((record) => this.#ofPeer(record)) : newer;
    const valid = received.filter((record) => {
      const problem = sender?.problem ?? this.#problemOf(record);
      if (problem !== undefined && sender) this.#peerLog.add(record, sender.peer, problem);
      return problem === undefined;
    });
    try {
      const resets = valid.filter(({ kind }) => kind === 'reset');
      const put = this.#put(valid.filter((record) => !resets.includes(record)));
      const unseen = this.#unseenResets(resets);
      for (const reset of unseen)
        void forgetKey(this.#context, this.#router, reset, this.#entriesFor(reset));
      if (sender) for (const record of [...put, ...unseen]) this.#peerLog.add(record, sender.peer);
    } catch (error) {
      this.#context.log('warn', 'controls not taken over', { reason: errorMessageOf(error) });
    }
  }

  /** A ban of this daemon's operator keeps its scope if a peer replaces it. */
  #ofPeer(record: ControlRecord): ControlRecord {
    const known = record.kind === 'ban' ? this.#table.find(record) : undefined;
    const isFromPeer = known && !known.isFromPeer ? undefined : true;
    return { ...record, by: this.#context.operator()?.id, isFromPeer };
  }

  /** The limiters in which a reset acts. */
  #entriesFor({ isFromPeer }: ControlRecord): readonly LimiterEntry[] {
    const { registry, sharedLimits } = this.#context;
    if (!isFromPeer) return registry.all;
    return registry.all.filter(({ name }) => sharedLimits().has(name.split('[', 1)[0]));
  }

  /** Resets by peers since this daemon started, each once. */
  #unseenResets(resets: readonly ControlRecord[]): readonly ControlRecord[] {
    return this.#put(resets.filter(({ until }) => until - RESET_SHARED_MS >= this.#startedAt));
  }

  /** Replaces all controls by those of the records. */
  replace(records: readonly ControlRecord[]): void {
    const now = this.#context.clock.now();
    const inEffect = records.filter(({ isRemoved, until }) => !isRemoved && until > now);
    this.#table.retain(new Set(inEffect.map(idOf)));
    this.merge(records);
  }

  /** Resets keys again whose consumption an older snapshot has restored. Servers have forgotten it already. */
  repeatResets(resets: readonly ControlRecord[]): void {
    const isLocal = ({ limiter }: LimiterEntry): boolean => limiter instanceof SyncLimiter;
    for (const reset of resets)
      void forgetKey(this.#context, this.#router, reset, this.#entriesFor(reset).filter(isLocal));
  }

  /** The limits have changed: overrides of limits that are gone, or that can no longer have the rule, end. */
  applyConfig(): void {
    for (const record of this.#table.active) {
      if (record.kind !== 'override' || this.#problemOf(record) === undefined) continue;
      const { key, limit = '' } = record;
      this.#context.log('warn', 'run-time override ends with its limit', { key, limit });
      this.#remove(record);
    }
  }

  close(): void {
    this.#table.close();
  }

  // For routes

  get isEmpty(): boolean {
    return this.#table.size === 0;
  }

  banOf(key: string, limits: () => readonly LimitConfig[]) {
    const isShared = (): boolean =>
      limits().some(({ name }) => this.#context.sharedLimits().has(name));
    const ban = this.#table.banOf(key, isShared);
    if (!ban) return undefined;
    const { pattern, record } = ban;
    const retryAfterMs = (): Millis =>
      Math.max(1, Math.ceil(record.until - this.#context.clock.now()));
    const { until, note } = record;
    return { isAllowed: false, reason: 'banned' as const, pattern, retryAfterMs, until, note };
  }

  overrideOf(limit: LimitConfig, key: string, plan?: string): AppliedOverride | undefined {
    const record = this.#table.overrideOf(limit.name, key);
    if (!record) return undefined;
    if (plan !== undefined && limit.plans.has(plan)) this.#overrides.addPlan(record, plan);
    const { name, rule } = this.#overrides.entryOf(limit, record);
    return { name, rule: rule.limit };
  }

  #limitOf(fields: OptionReader, target: ControlKey): LimitConfig {
    const limits = this.#context.limits();
    const given = fields.get('limit');
    if (given !== undefined) {
      const named = limits.find(({ name }) => name === given);
      return named ?? fields.throwFor('limit', `one of ${limitNames(limits)}`);
    }
    const found = this.#router?.limitsOf(binaryKeyOf(target)) ?? [];
    const specific = found.find(({ always, per }) => !always && per === 'key') ?? found[0];
    if (specific) return specific;
    const expected = `a key that a limit matches, or \`limit\` as one of ${limitNames(limits)}: none matches the key`;
    throw new ConfigError('key', expected, target.key);
  }

  #set(record: Omit<ControlRecord, 'until' | 'setAt'>, forMs: Millis): ControlRecord {
    const setAt = this.#nextSetAt(this.#table.recordOf(record)?.setAt);
    const by = this.#context.operator()?.id;
    const given = { ...record, until: this.#context.clock.now() + forMs, setAt, by };
    const [complete = given] = this.#put([given]);
    const { kind, key, limit, note } = complete;
    const until = new Date(complete.until).toISOString();
    const fields = { key, ...(limit && { limit }), until, ...(note && { note }) };
    this.#context.log('info', `${kind} set`, fields);
    this.#share(complete);
    return complete;
  }

  #remove(record: ControlId): boolean {
    const known = this.#table.find(record);
    if (!known) return false;
    const by = this.#context.operator()?.id;
    const own = { ...known, by, isFromPeer: undefined };
    const removal = removalOf(own, this.#nextSetAt(known.setAt));
    this.#put([removal]);
    this.#share(removal);
    const { kind, key, limit } = known;
    this.#context.log('info', `${kind} removed`, { key, ...(limit && { limit }) });
    return true;
  }

  #share(record: ControlRecord): void {
    this.#context.share?.([record]);
    const reason = this.sharingProblemOf(record);
    if (reason === undefined) return;
    const { kind, key } = record;
    this.#context.log('warn', 'control not shared with peers', { kind, key, reason });
  }

  #put(records: readonly ControlRecord[]): readonly ControlRecord[] {
    const newer = this.#table.put(records);
    this.#context.journal.add(newer);
    return newer;
  }

  /** The time of a new record: later than all before, also within a millisecond, or of a peer whose clock is ahead. */
  #nextSetAt(knownSetAt = 0): Millis {
    const least = Math.max(this.#lastSetAt, knownSetAt) + 0.001;
    this.#lastSetAt = Math.max(this.#context.clock.now(), least);
    return this.#lastSetAt;
  }

  /** Why this daemon rejects a record, such as one for a limit that it does not have. */
  #problemOf(record: ControlRecord): string | undefined {
    const { kind, limit, rule, isRemoved, isFromPeer } = record;
    try {
      if (kind === 'ban') controlPatternOf(record);
      if (isFromPeer && limit !== undefined && !this.#context.sharedLimits().has(limit))
        return NOT_SHARED;
      if (kind !== 'override' || isRemoved) return undefined;
      const config = this.#context.limits().find(({ name }) => name === limit);
      return config?.per === 'key' && validRule(rule, config) !== undefined ? undefined : UNUSABLE;
    } catch (error) {
      if (error instanceof ConfigError) return UNUSABLE;
      throw error;
    }
  }

  #onChange(onlyKey: string | undefined): void {
    this.#router?.forgetRoutes(onlyKey);
    this.#overrides.removeUnused(() => this.#table.active);
  }
}

const ONE_COUNT = 'its one count for all keys (per: limit)';
