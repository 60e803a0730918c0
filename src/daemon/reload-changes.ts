import type { LimitConfig } from './config/limits.ts';
import type { ReloadChanges, ReloadWarning } from './protocols/http/admin-routes.ts';

type Limits = readonly Pick<LimitConfig, 'name' | 'backends'>[];

/** A limit with another name is another limit: a rename is one of each. */
export function changesOf(before: Limits, after: Limits): ReloadChanges {
  const missingIn = (others: Limits, limits: Limits): string[] => {
    const names = new Set(others.map(({ name }) => name));
    return limits.filter(({ name }) => !names.has(name)).map(({ name }) => name);
  };
  return { added: missingIn(before, after), removed: missingIn(after, before) };
}

/** Why limits, their overrides and plans start anew although there were limiters of these names before. */
export function restartWarnings(
  restarted: readonly string[],
  before: Limits,
  after: Limits,
): ReloadWarning[] {
  const backendsIn = (limits: Limits) => new Map(limits.map((limit) => [limit.name, limit]));
  const [old, next] = [backendsIn(before), backendsIn(after)];
  return restarted.map((name) => {
    const limit = name.split('[', 1)[0];
    const reason = restartReason(old.get(limit)?.backends ?? [], next.get(limit)?.backends ?? []);
    return { limit: name, warning: `limit starts anew: ${reason}` };
  });
}

/** Limits that a server decided and that another kind of server decides now: it has no counts of them. */
export function movedBetweenServers(
  before: Limits,
  after: Limits,
  isRemote: (name: string) => boolean,
): string[] {
  const old = new Map(before.map(({ name, backends }) => [name, namesOf(backends)]));
  const isMoved = ({ name, backends }: Limits[number]): boolean =>
    old.has(name) && old.get(name) !== namesOf(backends) && isRemote(name);
  return after.filter(isMoved).map(({ name }) => name);
}

type Backends = LimitConfig['backends'];

function restartReason(before: Backends, after: Backends): string {
  const [from, to] = [namesOf(before), namesOf(after)];
  if (from !== to) return `its backend was ${from} and is ${to}, and counts stay where they are`;
  const reason = 'its rule is of another kind';
  return after.length === 0 ? reason : `${reason}, or its backend ${to} converts no keys`;
}

const namesOf = (backends: Backends): string =>
  backends.map(({ name }) => name).join(' and ') || 'local';

/** Names in a line of the log or of the command line. */
const MAX_NAMES = 20;

/** `limits removed: a, b; new: c start anew`; undefined if there is nothing to say. */
export function describeChanges({ added, removed }: ReloadChanges): string | undefined {
  const parts = [
    removed.length > 0 && `limits removed: ${listOf(removed)}`,
    added.length > 0 && `new: ${listOf(added)} ${added.length > 1 ? 'start' : 'starts'} anew`,
  ];
  return parts.filter(Boolean).join('; ') || undefined;
}

function listOf(names: readonly string[]): string {
  const hidden = names.length - MAX_NAMES;
  const listed = names.slice(0, MAX_NAMES).join(', ');
  return hidden > 0 ? `${listed} and ${hidden} more` : listed;
}
