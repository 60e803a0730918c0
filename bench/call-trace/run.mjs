/**
 * Traces one request: every function of dist/ that it enters, in order, for each protocol and backend.
 *
 *     npm run trace:calls                  all requests in short: number of entries, and in which files
 *     npm run trace:calls -- 'HTTP'        those with this in their name, entry by entry
 *     npm run trace:calls -- --json        as JSON
 *
 * The requests to Redis and etcd start these servers, which have to be installed.
 */

import { REQUESTS } from './requests.mjs';
import { Tracer } from './tracer.mjs';

const args = process.argv.slice(2);
const isJson = args.includes('--json');
const wanted = args.find((arg) => !arg.startsWith('--'));
const exact = Object.keys(REQUESTS).filter((name) => name === wanted);
const near = Object.keys(REQUESTS).filter((name) => !wanted || name.includes(wanted));
const names = exact.length > 0 ? exact : near;
if (names.length === 0) {
  console.error(
    `expected a part of a request's name, got ${wanted}; there are\n  ${Object.keys(REQUESTS).join('\n  ')}`,
  );
  process.exit(2);
}

const nameOf = ({ of, name }) =>
  (of && !['Object', 'Function'].includes(of) ? `${of}.` : '') + (name || '(anonymous)');

function printEntries(entries) {
  for (const entry of entries) {
    console.log(`  ${'  '.repeat(entry.depth)}${nameOf(entry)}  ${entry.file}:${entry.line}`);
  }
}

/** Files in the order of their first entry, with the number of entries. */
function printFiles(entries) {
  const files = new Map();
  for (const { file } of entries) files.set(file, (files.get(file) ?? 0) + 1);
  console.log(
    `  ${[...files].map(([file, times]) => (times > 1 ? `${file} ${times}` : file)).join(' · ')}`,
  );
}

/** Functions entered more than once: something may be computed twice. */
function printRepeated(entries) {
  const times = new Map();
  for (const entry of entries) {
    const name = `${nameOf(entry)} ${entry.file}`;
    times.set(name, (times.get(name) ?? 0) + 1);
  }
  const repeated = [...times].filter(([, n]) => n > 1).map(([name, n]) => `${name} ${n} ×`);
  if (repeated.length > 0) console.log(`  more than once: ${repeated.join(', ')}`);
}

const traces = {};
for (const name of names) {
  const tracer = await Tracer.start();
  const request = await REQUESTS[name]();
  const entries = await tracer.trace(request.send);
  await tracer.stop();
  await request.stop?.();
  traces[name] = entries;
  if (isJson) continue;
  console.log(`\n${name}: ${entries.length} function entries`);
  (wanted ? printEntries : printFiles)(entries);
  if (wanted) printRepeated(entries);
}
if (isJson) console.log(JSON.stringify(traces));
process.exitCode = 0;
