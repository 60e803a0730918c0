/** Programs that tests start, and the Debian package of each. Only scripts/test.mjs installs them. */

import { spawnSync } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';

const SYSTEM_FOLDERS = ['/usr/sbin', '/sbin']; // nginx and ip, which an ordinary user's PATH leaves out

/** `commands`: any of them will do; `module`: a Python module that one of them can import. */
const tool = (tier, what, pack, commands, module) => ({ tier, what, pack, commands, module });

/** By name. Tier `basic` is what `npm test` installs; `npm run test:system` installs both. */
export const TOOLS = {
  redis: tool('basic', 'Redis', 'redis-server', ['redis-server', 'valkey-server']),
  nats: tool('basic', 'NATS', 'nats-server', ['nats-server']),
  etcd: tool('basic', 'etcd', 'etcd-server', ['etcd']),
  nginx: tool('system', 'nginx', 'nginx-light', ['nginx']),
  haproxy: tool('system', 'HAProxy', 'haproxy', ['haproxy']),
  caddy: tool('system', 'Caddy', 'caddy', ['caddy']),
  chromium: tool('system', 'Chromium', 'chromium', ['chromium']),
  shellcheck: tool('system', 'ShellCheck', 'shellcheck', ['shellcheck']),
  promtool: tool('system', 'promtool', 'prometheus', ['promtool']),
  systemdNotify: tool('system', 'systemd-notify', 'systemd', ['systemd-notify']),
  netcat: tool('system', "OpenBSD's nc", 'netcat-openbsd', ['nc']),
  socat: tool('system', 'socat', 'socat', ['socat']),
  iproute: tool('system', 'ip', 'iproute2', ['ip']),
  compiler: tool('system', 'a C compiler', 'gcc', ['cc', 'gcc', 'clang']),
  dpkg: tool('system', 'dpkg', 'dpkg', ['dpkg']),
  // The package belongs to the Python of the system, which is not always the first one of the PATH.
  redisPy: tool('system', 'redis-py', 'python3-redis', ['python3', '/usr/bin/python3'], 'redis'),
};

/** The first command of a tool that exists, with its path where PATH does not have it; undefined without one. */
export function commandOf(name) {
  const { commands, module } = TOOLS[name];
  const canImport = (python) => spawnSync(python, ['-c', `import ${module}`]).status === 0;
  const found = commands.map(pathOf).filter((path) => path !== undefined);
  return module === undefined ? found[0] : found.find(canImport);
}

/** A line for readers of a test run: which program is missing, and how to get it. */
export function howToInstall(name) {
  const { tier, what, pack } = TOOLS[name];
  const command = tier === 'basic' ? 'npm test' : 'npm run test:system';
  return `${what} is not installed. \`${command}\` installs it as root, or: apt-get install ${pack}`;
}

function pathOf(command) {
  if (command.startsWith('/')) return isExecutable(command) ? command : undefined;
  const inPath = (process.env.PATH ?? '').split(delimiter);
  if (inPath.some((folder) => isExecutable(join(folder, command)))) return command;
  return SYSTEM_FOLDERS.map((folder) => join(folder, command)).find(isExecutable);
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
