/** Daemons in this process on virtual time, each with a snapshot file. */

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { FleetChannel } from '../../src/backends/daemon-backend.ts';
import { peersModule } from '../../src/backends/peers/daemon.ts';
import { peersFactory } from '../../src/backends/peers/factory.ts';
import { formatLine, type Log } from '../../src/core/log.ts';
import { BACKENDS, type BackendModule } from '../../src/daemon/backends/registry.ts';
import { parseConfigText } from '../../src/daemon/config/file.ts';
import { Daemon } from '../../src/daemon/daemon.ts';
import type { FileLocker } from '../../src/daemon/snapshot-claim.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { createTempDir } from './daemon.ts';

/** All backends, with peers that have no network: buckets and windows are shared by name only. */
function backendsWith(channel: FleetChannel): readonly BackendModule[] {
  const network = {
    addLimit() {},
    removeLimit() {},
    recordHits() {},
    retractHits() {},
    msUntilReleased: () => Infinity,
    isCatchingUp: () => false,
  };
  const readSection: BackendModule['readSection'] = (value, path) => ({
    ...(peersModule.readSection as NonNullable<BackendModule['readSection']>)(value, path),
    start: async ({ hasher }) => ({
      createFactory: () => peersFactory({ ...network, hasher }),
      channel,
      view: () => ({}),
      metrics: () => [],
      close() {},
    }),
  });
  return BACKENDS.map((each) => (each === peersModule ? { ...each, readSection } : each));
}

/** Every test has a folder of its own; `end` stops all daemons. */
export function virtualDaemons() {
  let folder: ReturnType<typeof createTempDir> | undefined;
  let started = 0;
  const cleanups: (() => unknown)[] = [];
  const place = (name: string): string => {
    folder ??= createTempDir();
    return join(folder.path, name);
  };

  /** With the clock of a daemon before it, its state goes on. One that was not stopped has crashed. */
  const start = async (
    limits: string,
    before?: VirtualClock,
    snapshot = 'state',
    lock?: FileLocker,
    channel?: FleetChannel,
  ) => {
    const backends = channel && backendsWith(channel);
    const clock = before ?? new VirtualClock(1_700_000_000_000);
    const socket = place(`${++started}.sock`);
    const file = place(`${started}.yaml`);
    const write = (text: string, path = snapshot): void => {
      const listen = `listen: { line: '${socket}', resp: off, http: off }`;
      const saved = path === '' ? '' : `snapshot: '${place(path)}'\n`;
      writeFileSync(file, `${listen}\n${saved}${text}\n`);
    };
    write(limits);
    const load = () => parseConfigText(file, readFileSync(file, 'utf8'), [], backends);
    const loaded = load();
    if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
    const logged: string[] = [];
    const lines: string[] = [];
    const log: Log = (level, message, fields = {}) => {
      logged.push(message);
      lines.push(`${level} ${formatLine(message, fields)}`);
    };
    const context = { log, load, version: '0.0.0', clock, lock, ...(backends && { backends }) };
    const daemon = await Daemon.start(loaded.config, context);
    let stopping: Promise<void> | undefined;
    const stop = (): Promise<void> => {
      const timer = setInterval(() => clock.advance(100), 1);
      stopping ??= daemon.stop();
      return stopping.finally(() => clearInterval(timer));
    };
    cleanups.push(stop);
    const { router, controls } = daemon;
    const isAllowed = (key: string): boolean =>
      router.isAllowed(Buffer.from(key), 0, key.length) as boolean;
    const check = async (key: string, limit?: string) => router.check({ key, limit, cost: 1 });
    const count = (key: string, most = 100): number => {
      let allowed = 0;
      for (let n = 0; n < most; n++) if (isAllowed(key)) allowed++;
      return allowed;
    };
    const reload = async (text: string, path?: string) => {
      write(text, path);
      return daemon.reload();
    };
    return { daemon, clock, controls, logged, lines, isAllowed, check, count, reload, stop };
  };

  return {
    start,
    /** A path in the folder of this test. */
    place,
    async end(): Promise<void> {
      for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
      folder?.remove();
      folder = undefined;
    },
  };
}
