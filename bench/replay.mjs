/**
 * Speed and memory of `sluice replay`, by format of the log.
 *
 *     npm run bench:replay              best of three rounds, written to bench/RESULTS.md
 *     npm run bench:replay -- --smoke   a short run, writes nothing
 *
 * Each case runs in its own process, on a log in a temporary folder. The best round counts: other load on the machine
 * can only slow it down. Lines per second of processor time are less sensitive to that load.
 */

import { execFileSync } from 'node:child_process';
import { createWriteStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { loadLine, machineLine, table, whole, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const LINES = smoke ? 20_000 : 1_000_000;
const ROUNDS = smoke ? 1 : 3;
const KEYS = 100_000;
const START = Date.UTC(2026, 9, 10);
const MONTHS = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');
const AGENTS = [
  'Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0',
  'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36',
  'curl/8.5.0',
];

/** The same calls in every format: a day, a few busy addresses and many others. */
function callOf(n) {
  const draw = ((n * 2654435761) >>> 0) / 2 ** 32;
  const client = Math.floor(KEYS * draw ** 4);
  const ip = `10.${client >> 16}.${(client >> 8) & 255}.${client & 255}`;
  return { ip, at: START + Math.floor((n / LINES) * 86_400) * 1000, item: n % 1000, n };
}

const writers = {
  combined({ ip, at, item, n }) {
    const [date, time] = new Date(at).toISOString().split('T');
    const [year, month, day] = date.split('-');
    const clf = `${day}/${MONTHS[month - 1]}/${year}:${time.slice(0, 8)} +0000`;
    return `${ip} - - [${clf}] "GET /api/v1/items/${item}?page=2 HTTP/1.1" 200 ${1000 + item} "https://example.org/shop" "${AGENTS[n % 3]}"\n`;
  },
  json: ({ ip, at, item, n }) =>
    `${JSON.stringify({ ts: at / 1000, ip, method: 'GET', path: `/api/v1/items/${item}`, status: 200, agent: AGENTS[n % 3] })}\n`,
  csv: ({ ip, at, item }) => `${new Date(at).toISOString()},${ip},GET,/api/v1/items/${item},200\n`,
};

const HEADERS = { csv: 'time,ip,method,path,status\n' };
const BUCKET = ['--limit', 'bucket 1/s burst 20'];

const cases = {
  'combined, bucket by ip': ['combined', ...BUCKET],
  'the same, gzip': ['gzip', ...BUCKET],
  'combined, bucket by {ip}:{path}': [
    'combined',
    ...BUCKET,
    '--key',
    '{ip}:{path}',
    '--max-keys',
    '5000000',
  ],
  'combined, a daemon’s configuration': ['combined', '--config', 'config', '--key', 'ip:{ip}'],
  'combined, --suggest 1%, two passes': ['combined', '--suggest', '1%'],
  'JSON lines, bucket by ip': ['json', ...BUCKET],
  'CSV, bucket by ip': ['csv', ...BUCKET],
};

async function writeLog(file, format) {
  const stream = createWriteStream(file);
  let text = HEADERS[format] ?? '';
  for (let n = 0; n < LINES; n++) {
    text += writers[format](callOf(n));
    if (text.length < 2 ** 20 && n < LINES - 1) continue;
    if (!stream.write(text)) await new Promise((resolve) => stream.once('drain', resolve));
    text = '';
  }
  await new Promise((resolve) => stream.end(resolve));
}

/** Runs one case in this process and prints its figures. */
async function measure(words) {
  const { run } = await import('../dist/cli/run.js');
  const out = [];
  const ignore = () => {};
  const terminal = { print: (line) => out.push(line), error: ignore, log: ignore, columns: 100 };
  const before = process.cpuUsage();
  const start = performance.now();
  const code = await run(['replay', ...words, '--json'], terminal);
  const ms = performance.now() - start;
  const { user, system } = process.cpuUsage(before);
  const { calls } = JSON.parse(out[0]);
  const rss = process.memoryUsage().rss / 2 ** 20; // the maximum that the system reports begins with that of the parent
  console.log(JSON.stringify({ code, calls, ms, cpuMs: (user + system) / 1000, rss }));
}

const [, , flag, ...given] = process.argv;
if (flag === '--one') {
  await measure(given);
  process.exit(0);
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-replay-'));
try {
  for (const format of Object.keys(writers)) await writeLog(join(folder, format), format);
  writeFileSync(
    join(folder, 'gzip'),
    gzipSync(readFileSync(join(folder, 'combined')), { level: 1 }),
  );
  writeFileSync(
    join(folder, 'config'),
    'limits:\n  api: { match: "ip:*", bucket: { rate: 1/s, burst: 20 } }\n  total: { bucket: { rate: 1000/s }, always: true, per: limit }\n',
  );
  const inFolder = (word) =>
    ['combined', 'gzip', 'json', 'csv', 'config'].includes(word) ? join(folder, word) : word;
  const results = [];
  for (const [name, words] of Object.entries(cases)) {
    const runs = Array.from({ length: ROUNDS }, () =>
      JSON.parse(
        execFileSync(process.execPath, [
          fileURLToPath(import.meta.url),
          '--one',
          ...words.map(inFolder),
        ]),
      ),
    );
    if (runs.some(({ code, calls }) => code !== 0 || calls !== LINES))
      throw new Error(`${name} failed`);
    const best = (figure) => Math.min(...runs.map(figure));
    results.push({
      name,
      ms: best(({ ms }) => ms),
      cpuMs: best(({ cpuMs }) => cpuMs),
      rss: best(({ rss }) => rss),
    });
  }
  const columns = {
    log: ({ name }) => name,
    'lines/s': ({ ms }) => whole(LINES / (ms / 1000)),
    'lines per second of processor time': ({ cpuMs }) => whole(LINES / (cpuMs / 1000)),
    'memory at the end': ({ rss }) => `${whole(rss)} MiB`,
  };
  const text = table(columns, results, ['---', '---:', '---:', '---:']);
  console.log(text);
  if (!smoke)
    writeSection(
      'Replay of logs',
      `${whole(LINES)} lines of a day and up to ${whole(KEYS)} keys, read from the file cache. The best of ${ROUNDS} processes each, in one run of
\`npm run bench:replay\`; ${machineLine()}, ${loadLine()}.

${text}`,
    );
} finally {
  rmSync(folder, { recursive: true, force: true });
}
