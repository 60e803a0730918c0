/** Programs that measurements use if they are installed. */

import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';

const PACKAGES = {
  'redis-benchmark': 'redis-tools',
  'redis-server': 'redis-server',
  wrk: 'wrk',
  cc: 'gcc',
  taskset: 'util-linux',
};

const found = new Map();

/** Whether a program is installed; says once which package has it. */
export function hasTool(name) {
  if (!found.has(name)) {
    found.set(name, isInPath(name));
    if (!found.get(name))
      console.error(`${name} is not installed; package ${PACKAGES[name]} has it`);
  }
  return found.get(name);
}

const isInPath = (name) =>
  process.env.PATH.split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, name), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
