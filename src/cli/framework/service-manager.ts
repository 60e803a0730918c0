/**
 * Tells systemd that the daemon is ready, stopping and alive (`Type=notify`, `WatchdogSec=`).
 *
 * Node has no datagram sockets of the Unix kind, so `systemd-notify` sends the messages. A shell that starts with the
 * daemon runs it: a fork of the daemon itself would copy the page tables of all its keys.
 */

import { spawn } from 'node:child_process';
import { type Clock, type Millis, schedule, systemClock } from '../../core/clock.ts';

export interface ServiceManager {
  /** Sends the assignments, such as `READY=1`, each as one message. */
  notify(...assignments: readonly string[]): void;
}

/** A longer interval is not worth a timer. */
const MAX_INTERVAL_MS: Millis = 3_600_000;

/** Reads assignments from standard input until it ends. A stop of the whole group must not end it before the daemon. */
const RELAY = 'trap \'\' TERM INT HUP; while IFS= read -r line; do systemd-notify "$line"; done';

/** The service manager of this process; without one, messages go nowhere. */
export function connectServiceManager(env: NodeJS.ProcessEnv): ServiceManager {
  if (!env.NOTIFY_SOCKET) return { notify: () => {} };
  const relay = spawn('/bin/sh', ['-c', RELAY], { stdio: ['pipe', 'ignore', 'inherit'] });
  relay.on('error', () => {}); // without a shell systemd gets no message, and says so
  relay.stdin.on('error', () => {});
  relay.unref();
  const manager: ServiceManager = {
    notify: (...assignments) => void relay.stdin.write(`${assignments.join('\n')}\n`),
  };
  const intervalMs = watchdogIntervalOf(env);
  if (intervalMs > 0) sendWatchdog(manager, intervalMs, systemClock);
  return manager;
}

/** Reports from the event loop that it runs, at this interval. */
function sendWatchdog(manager: ServiceManager, intervalMs: Millis, clock: Clock): void {
  manager.notify('WATCHDOG=1');
  const next = clock.now() + intervalMs;
  schedule(clock, next, () => sendWatchdog(manager, intervalMs, clock), false);
}

/** Half of what systemd waits for; 0: no watchdog. */
function watchdogIntervalOf({ WATCHDOG_USEC, WATCHDOG_PID }: NodeJS.ProcessEnv): Millis {
  const isOther = WATCHDOG_PID !== undefined && Number(WATCHDOG_PID) !== process.pid;
  const micros = Number(WATCHDOG_USEC);
  return isOther || !(micros > 0) ? 0 : Math.min(micros / 2000, MAX_INTERVAL_MS);
}
