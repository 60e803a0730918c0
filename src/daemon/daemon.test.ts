import { mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { folder } from '../../test/support/daemon.ts';
import { readText } from './config/file.ts';
import { Daemon } from './daemon.ts';

const place = folder();
afterAll(() => place.remove());

/** One that leaves its state in a file, and what it says meanwhile. */
async function saving(file: string) {
  const listen = "{ line: '127.0.0.1:0', resp: off, http: off }";
  const load = () => readText('sluice.yaml', `{ listen: ${listen}, snapshot: ${file} }`);
  const loaded = load();
  if (!('config' in loaded)) throw new Error(loaded.problems.join());
  const said: string[] = [];
  const daemon = await Daemon.start(loaded.config, {
    log: (_, message, { failures } = {}) =>
      said.push(failures === undefined ? message : `${message}, failures: ${failures}`),
    load,
    version: '0.0.0-test',
  });
  return { daemon, said };
}

test('a state that is being saved while it is to be saved again is saved twice, whole', async () => {
  const { daemon, said } = await saving(join(place.path, 'state'));
  await Promise.all([daemon.save(), daemon.save(), daemon.save()]);
  await daemon.stop();
  expect(said).toEqual(Array.from({ length: 4 }, () => 'snapshot written'));
});

test('a state that cannot be saved is told of once, when it can again, and in the end', async () => {
  const file = join(place.path, 'later', 'state');
  const { daemon, said } = await saving(file);
  for (let n = 0; n < 3; n++) await daemon.save();
  mkdirSync(dirname(file));
  await daemon.save();
  await daemon.save();
  rmSync(dirname(file), { recursive: true });
  await daemon.save();
  await daemon.stop();
  expect(said).toEqual([
    'snapshot cannot be written there',
    'snapshot not written',
    'snapshot written again, failures: 3',
    'snapshot written',
    'snapshot not written',
    'snapshot not written', // and this was the last try
  ]);
});
