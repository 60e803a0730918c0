import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from './support/daemon.ts';
import { freePort, freeUdpPorts, promtool, redisServer, startRedis } from './support/services.ts';
import { pagePaths, readPage } from './support/snippets/pages.ts';

const { start, place, end } = daemonFixture();
afterEach(end);

const ALERTS = 'deploy/prometheus/alerts.yaml';
const PAGE = 'docs/how-to/monitor.md';

const get = async (daemon: RunningDaemon, path: string) => {
  const response = await fetch(`http://${daemon.addresses.http[0]}${path}`);
  return { status: response.status, text: await response.text() };
};

const metricsOf = async (daemon: RunningDaemon): Promise<string> =>
  (await get(daemon, '/metrics')).text;

const readMetric = (metrics: string, series: string): number => {
  const line = metrics.split('\n').find((each) => each.startsWith(`${series} `));
  return Number(line?.slice(series.length + 1) ?? Number.NaN);
};

const configWith = (limits: string, more = ''): string =>
  `listen: { line: '127.0.0.1:0', resp: '127.0.0.1:0', http: '127.0.0.1:0' }
limits:
${limits}
${more}`;

/** A daemon with every kind of metric that rules and dashboard name. */
async function startFull(): Promise<RunningDaemon> {
  const { file, path } = place();
  const [udp] = await freeUdpPorts(1);
  const config = file(
    'sluice.yaml',
    configWith(
      `  api: { bucket: { rate: 1/h, burst: 1 }, match: 'api:*' }
  trial: { bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true }
  sink: { adaptive: { initial: 1 }, match: 'sink:*' }
  rpc: { busy: {}, match: 'rpc:*' }
  remote: { bucket: { rate: 1/s }, match: 'remote:*', redis: { url: 'redis://127.0.0.1:${await freePort()}', onUnavailable: deny } }
  part: { bucket: { rate: 100/s }, match: 'part:*', pool: true }`,
      `deny: [bad]
peers: { udp: '127.0.0.1:${udp}' }
pool: { size: 2 }
snapshot: { file: ${join(path, 'state')}, every: 100ms }`,
    ),
  );
  const daemon = await start(['--config', config]);
  await exchange(daemon.addresses.line[0], 'api:1\napi:1\nbad\nbad\nremote:1\npart:1\npart:1\n');
  for (const key of ['sink:1', 'rpc:1']) {
    const { permit } = JSON.parse((await get(daemon, `/check?key=${key}&hold=1`)).text);
    await fetch(`http://${daemon.addresses.http[0]}/settle`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ permit, outcome: 'busy', rttMs: 5 }),
    });
  }
  return daemon;
}

describe('metrics of the daemon itself', () => {
  test('process, event loop, decisions, lists and snapshots are there, with plausible values', async () => {
    const daemon = await startFull();
    for (let n = 0; n < 70; n++) await get(daemon, '/check?key=bad'); // one read in 64 is measured
    await expect
      .poll(async () => readMetric(await metricsOf(daemon), 'sluice_snapshot_timestamp_seconds'))
      .toBeGreaterThan(Date.now() / 1000 - 60);
    const metrics = await metricsOf(daemon);
    const value = (series: string): number => readMetric(metrics, series);
    expect(Math.abs(value('process_start_time_seconds') - Date.now() / 1000)).toBeLessThan(60);
    expect(value('process_resident_memory_bytes')).toBeGreaterThan(2e7);
    expect(value('process_cpu_seconds_total')).toBeGreaterThan(0.01);
    expect(value('sluice_daemon_event_loop_delay_seconds_count')).toBeGreaterThan(0);
    expect(value('sluice_decision_duration_seconds_count')).toBeGreaterThan(0);
    expect(value('sluice_static_denials_total{reason="deny-list"}')).toBe(72);
    expect(value('sluice_snapshot_failures_total')).toBe(0);
    expect(value('sluice_decisions_total{limit="trial",verdict="deny",shadow="true"}')).toBe(1);
  });

  test('a stall of the event loop shows in the histogram', async () => {
    const daemon = await start(EPHEMERAL_PORTS);
    daemon.signal('SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 300));
    daemon.signal('SIGCONT');
    await expect
      .poll(async () => {
        const metrics = await metricsOf(daemon);
        const upTo = (le: string): number =>
          readMetric(metrics, `sluice_daemon_event_loop_delay_seconds_bucket{le="${le}"}`);
        return upTo('+Inf') - upTo('0.1');
      })
      .toBeGreaterThan(0);
  });

  test('a snapshot that cannot be written is counted', async () => {
    const { file } = place();
    const config = file(
      'sluice.yaml',
      configWith(
        '  all: { bucket: { rate: 1/s } }',
        'snapshot: { file: /proc/none/state, every: 20ms }',
      ),
    );
    const daemon = await start(['--config', config]);
    await expect
      .poll(async () => readMetric(await metricsOf(daemon), 'sluice_snapshot_failures_total'))
      .toBeGreaterThan(1);
  });

  test('the last reload failed: a gauge says so until one succeeds', async () => {
    const { file } = place();
    const text = configWith('  all: { bucket: { rate: 1/s } }');
    const config = file('sluice.yaml', text);
    const daemon = await start(['--config', config]);
    const reload = (content: string) => {
      file('sluice.yaml', content);
      return fetch(`http://${daemon.addresses.http[0]}/reload`, { method: 'POST' });
    };
    const last = async () => readMetric(await metricsOf(daemon), 'sluice_last_reload_successful');
    expect(await last()).toBe(1);
    await reload('limits: 3');
    expect(await last()).toBe(0);
    await reload(text);
    expect(await last()).toBe(1);
  });

  test.skipIf(!promtool())('promtool finds no mistake in them', async () => {
    const daemon = await startFull();
    const { status, stderr } = spawnSync('promtool', ['check', 'metrics'], {
      input: await metricsOf(daemon),
      encoding: 'utf8',
    });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  });
});

describe.skipIf(!redisServer())('readiness with a backend that is unavailable', () => {
  const configOf = (port: number, backends: string): string =>
    configWith(
      `  api: { bucket: { rate: 100/s }, redis: { url: 'redis://127.0.0.1:${port}', onUnavailable: deny, deadline: 200ms } }
  trial: { bucket: { rate: 100/s }, shadow: true, always: true, redis: { url: 'redis://127.0.0.1:${port}', onUnavailable: deny, deadline: 200ms } }`,
      `ready: { backends: ${backends} }`,
    );

  test.each(['ignore', 'require'])('ready.backends: %s', async (backends) => {
    const redis = await startRedis();
    try {
      const config = place().file('sluice.yaml', configOf(redis.port, backends));
      const daemon = await start(['--config', config]);
      await expect
        .poll(async () => {
          await get(daemon, '/check?key=a');
          return JSON.parse((await get(daemon, '/readyz')).text);
        })
        .toEqual({ ready: true, reasons: [], unavailable: [] });
      await redis.kill();
      await expect
        .poll(
          async () => {
            await get(daemon, '/check?key=a');
            const { status, text } = await get(daemon, '/readyz');
            return [status, JSON.parse(text)];
          },
          { timeout: 15_000 },
        )
        .toEqual(
          backends === 'require'
            ? [503, { ready: false, reasons: ['backends'], unavailable: ['api'] }]
            : [200, { ready: true, reasons: [], unavailable: ['api'] }],
        );
    } finally {
      await redis.stop();
    }
  });

  test('is noticed by a daemon that gets no checks', async () => {
    const redis = await startRedis();
    try {
      const config = place().file('sluice.yaml', configOf(redis.port, 'require'));
      const daemon = await start(['--config', config]);
      const status = async () => (await get(daemon, '/readyz')).status;
      await expect.poll(status, { timeout: 15_000 }).toBe(200);
      await redis.kill();
      await expect.poll(status, { timeout: 15_000 }).toBe(503);
    } finally {
      await redis.stop();
    }
  });
});

/** Names of metrics in a PromQL expression. */
const metricNames = (expression: string): string[] =>
  expression.match(/\b(?:sluice|process|nodejs)_[a-z_]+\b/g) ?? [];

describe('alert rules and dashboard', () => {
  const rules = (
    parse(readFileSync(ALERTS, 'utf8')) as {
      groups: { rules: { alert: string; expr: string }[] }[];
    }
  ).groups[0].rules;
  const dashboard = JSON.parse(readFileSync('deploy/grafana/sluice.json', 'utf8')) as {
    panels: { title: string; targets?: { expr: string; legendFormat: string }[] }[];
  };
  const expressions = dashboard.panels.flatMap(({ targets = [] }) => targets);

  test.skipIf(!promtool())(
    'promtool accepts the rules, and they fire as their examples say',
    () => {
      for (const args of [
        ['check', 'rules', 'alerts.yaml'],
        ['test', 'rules', 'alerts.test.yaml'],
      ]) {
        const { status, stdout, stderr } = spawnSync('promtool', args, {
          cwd: 'deploy/prometheus',
          encoding: 'utf8',
        });
        expect(status, stdout + stderr).toBe(0);
      }
    },
  );

  test('every rule has an example', () => {
    const examples = readFileSync('deploy/prometheus/alerts.test.yaml', 'utf8');
    const untested = rules
      .filter(({ alert }) => !examples.includes(alert))
      .map(({ alert }) => alert);
    expect(untested).toEqual(['SluiceRestarts', 'SluiceConnectionsRefused', 'SluicePermitsFull']);
  });

  test('no rule has a range that holds a single sample of the default scrape interval', () => {
    const MINUTES: Record<string, number> = { s: 1 / 60, m: 1, h: 60 };
    const tooShort = rules.filter(({ expr }) =>
      [...expr.matchAll(/\[(\d+)([smh])\]/g)].some(
        ([, number, unit]) => Number(number) * MINUTES[unit] < 5,
      ),
    );
    expect(tooShort.map(({ alert }) => alert)).toEqual([]);
  });

  test(`every row of the table of alerts in ${PAGE} names a rule`, () => {
    const [, section] = readFileSync(PAGE, 'utf8').split('## Alerts\n');
    const rows = section.split('\n').filter((line) => line.startsWith('| '));
    const named = rows.slice(2).map((row) => /^\| `(\w+)` \|/.exec(row)?.[1] ?? row);
    expect(named.length).toBeGreaterThan(5);
    expect(named.filter((name) => rules.every(({ alert }) => alert !== name))).toEqual([]);
  });

  test('no page has rules of its own beside the file', () => {
    const blocks = pagePaths().flatMap((path) => readPage(path).blocks);
    expect(blocks.filter(({ text }) => text.includes('alert: Sluice'))).toEqual([]);
  });

  test.skipIf(!promtool())(
    'promtool accepts the prometheus.yml of the page, with the job that rules select',
    () => {
      const { file, path } = place();
      const { text } = readPage(PAGE).blocks.find((block) => block.file === 'prometheus.yml') ?? {};
      const config = file('prometheus.yml', text ?? '');
      file('alerts.yaml', readFileSync(ALERTS, 'utf8'));
      const { status, stdout, stderr } = spawnSync('promtool', ['check', 'config', config], {
        cwd: path,
        encoding: 'utf8',
      });
      expect(status, stdout + stderr).toBe(0);
      expect(stdout).toContain(`${rules.length} rules found`);
      const selected = rules.flatMap(({ expr }) =>
        [...expr.matchAll(/job="(\w+)"/g)].map(([, job]) => job),
      );
      const jobs = (parse(text ?? '') as { scrape_configs: { job_name: string }[] }).scrape_configs;
      expect(jobs.map(({ job_name }) => job_name)).toEqual(expect.arrayContaining(selected));
    },
  );

  test('every metric and label that they name is exported by a daemon', async () => {
    const daemon = await startFull();
    await expect
      .poll(async () => metricsOf(daemon))
      .toContain('sluice_snapshot_timestamp_seconds ');
    const metrics = await metricsOf(daemon);
    const exported = new Set([...metrics.matchAll(/^([a-z_]+)[ {]/gm)].map(([, name]) => name));
    const named = [...rules, ...expressions].flatMap(({ expr }) => metricNames(expr));
    expect(named.length).toBeGreaterThan(40);
    expect([...new Set(named)].filter((name) => !exported.has(name))).toEqual([]);
    const labels = new Set([...metrics.matchAll(/([a-z_]+)="/g)].map(([, label]) => label));
    for (const added of ['instance', 'job']) labels.add(added); // by Prometheus
    const used = [...rules, ...expressions].flatMap(({ expr }) =>
      [...expr.matchAll(/([a-z_]+)(?:=~|!=|=)"/g)].map(([, label]) => label),
    );
    const grouped = [...rules, ...expressions].flatMap(({ expr }) =>
      [...expr.matchAll(/by \(([^)]+)\)/g)].flatMap(([, list]) => list.split(/, */)),
    );
    expect([...new Set([...used, ...grouped])].filter((label) => !labels.has(label))).toEqual([]);
  });

  test.skipIf(!promtool())('every query of the dashboard is valid PromQL', () => {
    const groups = [
      {
        name: 'dashboard',
        rules: expressions.map(({ expr }, n) => ({
          record: `query_${n}`,
          expr: expr.replaceAll('$__rate_interval', '1m').replace(/\$(instance|limit)/g, '.*'),
        })),
      },
    ];
    const file = place().file('queries.yaml', JSON.stringify({ groups }));
    const { status, stdout, stderr } = spawnSync('promtool', ['check', 'rules', file], {
      encoding: 'utf8',
    });
    expect(status, stdout + stderr).toBe(0);
  });
});
