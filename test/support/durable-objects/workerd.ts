/**
 * Durable Objects of workerd, Cloudflare's runtime, for limiters in this process.
 *
 *     limiter in Node ──▶ namespace: HTTP ──▶ gateway.mjs in workerd ──▶ SluiceObject, stored on disk
 */

import { copyFileSync, existsSync, mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { rolldown } from 'rolldown';
import { type Service, startServer } from '../../../bench/server-process.mjs';
import type { ObjectNamespace } from '../../../src/backends/durable-objects/platform.ts';
import { WORKERD } from '../runtimes.ts';

const SOURCE = 'test/support/durable-objects';

/** Bundles a Worker to `bundle.mjs` in a folder. */
export async function bundleWorker(program: string, folder: string): Promise<void> {
  const bundled = await rolldown({
    input: program,
    platform: 'browser',
    logLevel: 'silent',
    external: /^cloudflare:/,
  });
  await bundled.write({ file: join(folder, 'bundle.mjs'), format: 'esm' });
  await bundled.close();
}

/** A folder for bundle, configuration and storage, in memory where Linux has that: an fsync of a busy disk takes long. */
export const workerdFolder = (): string => {
  const parent = existsSync('/dev/shm') ? '/dev/shm' : tmpdir();
  return mkdtempSync(join(parent, 'sluice-workerd-'));
};

/** Starts workerd with `bundle.mjs` and a configuration in a folder. Its service `disk` outlives a restart. */
export async function startWorkerd(
  folder: string,
  config: string,
  sockets: readonly string[] = ['http'],
): Promise<{ readonly service: Service; readonly ports: readonly number[] }> {
  const disk = join(folder, 'disk');
  mkdirSync(disk, { recursive: true });
  copyFileSync(config, join(folder, 'workerd.capnp'));
  let ports: readonly number[] = [];
  const service = await startServer({
    command: WORKERD,
    portCount: sockets.length,
    argsIn(_, chosen) {
      ports = chosen;
      const addresses = sockets.map((name, n) => `--socket-addr=${name}=127.0.0.1:${chosen[n]}`);
      const path = `--directory-path=disk=${disk}`;
      return ['serve', join(folder, 'workerd.capnp'), ...addresses, path];
    },
    isReady: () => answers(`http://127.0.0.1:${ports[0]}`),
  });
  return { service, ports };
}

const answers = (url: string): Promise<boolean> =>
  fetch(url).then(
    ({ ok }) => ok,
    () => false,
  );

/** The gateway in workerd. */
export async function startObjects(folder: string): Promise<Service> {
  await bundleWorker(join(SOURCE, 'gateway.mjs'), folder);
  return (await startWorkerd(folder, join(SOURCE, 'workerd.capnp'))).service;
}

/** The objects whose names begin with a prefix. */
export function namespaceOf(
  { port }: Pick<Service, 'port'>,
  prefix: string,
  headers: Readonly<Record<string, string>> = {},
): ObjectNamespace {
  return {
    idFromName: (name) => ({ name: prefix + name }),
    get: (id) => {
      const object = encodeURIComponent((id as { name: string }).name);
      return {
        fetch: (_, { body }) =>
          fetch(`http://127.0.0.1:${port}`, {
            method: 'POST',
            body,
            headers: { ...headers, object },
          }),
      };
    },
  };
}
