/**
 * Applies another configuration to a running daemon, without a pause in its answers.
 *
 *     prepare: everything that can fail ──▶ commit: limiters, routes, settings ──▶ close what is no longer used
 *
 * Keys keep what they have consumed, where the rule stays of its kind.
 */

import { formatListenAddress } from '../core/listen-address.ts';
import { backgroundIdle, nextTurn, runInSlices } from '../core/steps.ts';
import type { DaemonComponents } from './components.ts';
import type { Config } from './config/read.ts';
import type { ReloadResult, ReloadWarning } from './protocols/http/admin-routes.ts';
import { changesOf, movedBetweenServers, restartWarnings } from './reload-changes.ts';
import {
  closeLimiters,
  isLimitName,
  type LimiterEntry,
  type RegistryChange,
} from './router/limiter-registry.ts';
import { indexRoutes, type RouteIndex } from './router/route-index.ts';
import { changedSections } from './running-backends.ts';
import type { ListenerChange, ProtocolAddress } from './server/listeners.ts';

/** A warning of a reload. */
const UNCONVERTED = 'keys of the limit were not converted: its server is unavailable';

/** Applies another configuration, or changes nothing. */
export async function applyConfig(
  components: DaemonComponents,
  config: Config,
  file: string | undefined,
): Promise<ReloadResult> {
  if (components.isStopping) return reloadFailure(['the daemon is stopping']);
  const changed = changedSections(components.config, config);
  if (changed.length > 0) {
    const hint = 'that takes a restart; with a snapshot no state is lost';
    return reloadFailure(changed.map((section) => `\`${section}\` has changed: ${hint}`));
  }
  const { opened, closed, limiters, routes } = await prepareChange(components, config);
  const known = new Set(components.registry.all.map(({ name }) => name));
  const { created } = limiters;
  const unconverted = await components.registry.changeRemote(limiters);
  await backgroundIdle(); // a change of a rule that follows another one moves the rest of its keys at once
  await components.snapshotter.idle(); // it reads the keys of all rules, in slices
  await nextTurn();
  components.denialLog.flush(); // removed limiters take their counts with them
  const { limits: oldLimits } = components.config;
  const isRemote = (name: string): boolean =>
    [components.registry.get(name), limiters.entries.get(name)].every(
      (entry) => entry?.limiter.isRemote,
    );
  const moved = movedBetweenServers(oldLimits, config.limits, isRemote);
  const removed = components.registry.commit(limiters);
  const restarted = [...limiters.restarted, ...moved];
  const warnings: readonly ReloadWarning[] = [
    ...[...unconverted].map((limit) => ({ limit, warning: UNCONVERTED })),
    ...restartWarnings(restarted, oldLimits, config.limits),
  ];
  for (const { limit, warning } of warnings) components.log('warn', warning, { limit });
  const changes = changesOf(oldLimits, config.limits);
  components.useConfig(config, routes);
  await nextTurn();
  components.limitLog.add(created);
  components.probe.start();
  components.limitLog.remove(removed);
  await components.snapshotter.configure(config.snapshot);
  await components.snapshotClaim.commit();
  components.denialLog.configure(config.log.denialsMs, config.log.denialKeys);
  for (const listener of closed)
    components.log('info', 'no longer listening', listenerFields(listener));
  for (const listener of opened) components.log('info', 'listening', listenerFields(listener));
  await closeLimiters(removed);
  components.backends.closeUnusedConnections(config);
  const limits = config.limits.length;
  const isAnew = ({ name }: LimiterEntry): boolean =>
    isLimitName(name) && (!known.has(name) || restarted.includes(name));
  const kept = limits - created.filter(isAnew).length;
  return { ok: true, file, limits, kept, warnings, ...changes };
}

/** Everything that can fail: creates limiters, then changes listeners. A failure undoes all of it. */
async function prepareChange(
  components: DaemonComponents,
  config: Config,
): Promise<ListenerChange & { readonly limiters: RegistryChange; readonly routes: RouteIndex }> {
  let created: readonly LimiterEntry[] = [];
  try {
    await components.snapshotClaim.prepare(config.snapshot?.file);
    await components.backends.prepare(config);
    await nextTurn();
    const limiters = await runInSlices(components.registry.prepare(config.limits));
    created = limiters.created;
    await nextTurn();
    const routes = await runInSlices(indexRoutes(config));
    await nextTurn();
    return { ...(await components.listen(config)), limiters, routes };
  } catch (error) {
    await components.snapshotClaim.abort();
    await closeLimiters(created);
    components.backends.closeUnusedConnections(components.config);
    throw error;
  }
}

const listenerFields = ({ protocol, listen }: ProtocolAddress) => ({
  protocol,
  at: formatListenAddress(listen),
});

export const reloadFailure = (problems: readonly string[]): ReloadResult => ({
  ok: false,
  problems,
});
