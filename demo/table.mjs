/**
 * The table of the demo: one row per client, three columns per daemon.
 *
 *                   north          south           west        all    since start
 *              ok  no left    ok  no left    ok  no left    ok  no  allowed  bucket
 *     mallory   3  17   -1     4  16   -1     3  17   -1    10  50      312     310
 */

import { paint } from './screen.mjs';

const WIDTHS = { name: 8, ok: 6, no: 4, left: 5, allowed: 9, bucket: 8 };
const DAEMON_WIDTH = WIDTHS.ok + WIDTHS.no + WIDTHS.left;

/** `remaining` maps a daemon to a map from caller to its remaining calls. */
export function tableOf(callers, daemons, remaining, { rate, burst }) {
  return [
    nameRow(daemons),
    headRow(daemons),
    ...callers.map((caller) => callerRow(caller, daemons, remaining)),
    '',
    ...[
      `limit per client: ${rate} calls/s over all daemons, burst ${burst}`,
      'ok, no: allowed and denied in the last second; left: remaining, negative is debt',
      'bucket: what one token bucket that sees every call would have allowed',
    ].map((line) => paint('dim', line)),
  ];
}

const cell = (text, width, look) => paint(look, String(text).padStart(width));

const nameRow = (daemons) =>
  [
    cell('', WIDTHS.name),
    ...daemons.map(({ name, state }) =>
      state === 'up'
        ? cell(name, DAEMON_WIDTH, 'bold')
        : cell(`${name} ${state}`, DAEMON_WIDTH, 'red'),
    ),
    cell('all', WIDTHS.ok - 1 + WIDTHS.no, 'bold'),
    cell('since start', WIDTHS.allowed + WIDTHS.bucket, 'bold'),
  ].join('');

const headRow = (daemons) =>
  paint(
    'dim',
    [
      ''.padEnd(WIDTHS.name),
      ...daemons.map(() => '    ok  no left'),
      '   ok  no  allowed  bucket',
    ].join(''),
  );

function callerRow(caller, daemons, remaining) {
  const all = caller.lastSecond();
  return [
    caller.name.padEnd(WIDTHS.name),
    ...daemons.flatMap((daemon) => daemonCells(caller, daemon, remaining.get(daemon)?.get(caller))),
    okCell(all.allowed, WIDTHS.ok - 1),
    noCell(all.denied),
    cell(caller.allowed, WIDTHS.allowed),
    cell(caller.oneBucket, WIDTHS.bucket),
  ].join('');
}

function daemonCells(caller, daemon, remaining) {
  if (daemon.state !== 'up') return cell('·', DAEMON_WIDTH, 'dim');
  const { allowed, denied } = caller.lastSecond(daemon);
  const leftCell = cell(remaining ?? '·', WIDTHS.left, remaining < 0 ? 'red' : undefined);
  return [okCell(allowed, WIDTHS.ok), noCell(denied), leftCell];
}

const okCell = (count, width) => cell(count, width, count > 0 ? 'green' : 'dim');
const noCell = (count) => cell(count, WIDTHS.no, count > 0 ? 'yellow' : 'dim');
