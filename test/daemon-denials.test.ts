import { writeFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from './support/daemon.ts';

const { start, place, end } = daemonFixture();
afterEach(end);

const PORTS = EPHEMERAL_PORTS.map((port) => (port === 'off' ? '127.0.0.1:0' : port));

const startWith = (text: string): Promise<RunningDaemon> =>
  start([...PORTS, '--config', place().file('sluice.yaml', text)]);

const flood = (daemon: RunningDaemon, key: string, count: number): Promise<string> =>
  exchange(daemon.addresses.line[0], `${key}\n`.repeat(count));

const denialLines = (daemon: RunningDaemon): string[] =>
  daemon
    .log()
    .split('\n')
    .filter((line) => line.includes(' calls denied'));

const sumOf = (lines: readonly string[]): number =>
  lines.reduce((sum, line) => sum + Number(/ denied=(\d+)/.exec(line)?.[1]), 0);

describe('denial log of the daemon', () => {
  test('a flood of denials: one line per limit and interval, and every denial is counted', async () => {
    const daemon = await startWith(
      'log: { denials: 300ms }\nlimits: { api: { bucket: { rate: 1/h, burst: 10 } } }\n',
    );
    const since = performance.now();
    const replies = await flood(daemon, 'alice', 5000);
    expect(replies.match(/NO/g)).toHaveLength(4990);
    await daemon.waitForLog(/warn calls denied limit=api denied=\d+ seconds=[\d.]+\n/);
    await daemon.stop();
    const lines = denialLines(daemon);
    expect(sumOf(lines)).toBe(4990);
    expect(lines.length).toBeLessThanOrEqual(2 + (performance.now() - since) / 300);
  });

  test('is on by default, and a stopping daemon logs what is pending', async () => {
    const daemon = await startWith('limits: { api: { bucket: { rate: 1/h, burst: 1 } } }\n');
    await flood(daemon, 'alice', 4);
    await daemon.stop();
    expect(denialLines(daemon)).toEqual([
      expect.stringMatching(/ warn calls denied limit=api denied=3 seconds=[\d.]+$/),
    ]);
  });

  test('denials: off logs none; a reload turns them on', async () => {
    const limits = 'limits: { api: { bucket: { rate: 1/h, burst: 1 } } }\n';
    const config = place().file('sluice.yaml', `log: { denials: off }\n${limits}`);
    const daemon = await start([...EPHEMERAL_PORTS, '--config', config]);
    await flood(daemon, 'alice', 4);
    writeFileSync(config, `log: { format: json, denials: 1s }\n${limits}`);
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/"message":"reloaded"/);
    await flood(daemon, 'alice', 5);
    await daemon.stop();
    const logged = daemon.log().match(/\{.*"message":"calls denied".*\}/g) ?? [];
    expect(logged.map((line) => JSON.parse(line))).toEqual([
      expect.objectContaining({ level: 'warn', limit: 'api', denied: 5 }),
    ]);
  });

  test('names lists, shadow mode, full concurrency limits and CL.THROTTLE', async () => {
    const daemon = await startWith(`
deny: [mallory]
limits:
  api: { bucket: { rate: 1/h, burst: 100 }, match: 'a*' }
  trial: { bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true, match: 'a*' }
  flights: { concurrency: 1, match: 'f*' }
`);
    await flood(daemon, 'mallory', 2);
    const http = `http://${daemon.addresses.http[0]}`;
    await fetch(`${http}/take-up-to?key=mallory&max=5`, { method: 'POST' });
    await flood(daemon, 'alice', 5);
    const check = (query: string) => fetch(`${http}/check?${query}`).then(({ status }) => status);
    expect([await check('key=f&hold=1'), await check('key=f')]).toEqual([200, 503]);
    const throttle = 'CL.THROTTLE k 0 1 3600\r\n';
    await exchange(daemon.addresses.resp[0], throttle.repeat(6));
    await daemon.stop();
    const logged = denialLines(daemon).map((line) => line.replace(/^.*denied (.*) sec.*$/, '$1'));
    expect(logged).toEqual([
      'command=CL.THROTTLE denied=5',
      'limit=trial shadow=true denied=4',
      'reason=deny-list denied=3',
      'limit=flights denied=1',
    ]);
  });

  test('many limits at once: 20 lines, and one for the rest', async () => {
    const limits = Array.from(
      { length: 30 },
      (_, n) => `l${n}: { bucket: { rate: 1/h, burst: 1 }, match: k${n} }`,
    );
    const daemon = await startWith(`limits: { ${limits.join(', ')} }\n`);
    for (let n = 0; n < 30; n++) await flood(daemon, `k${n}`, 2 + Math.max(0, 20 - n));
    await daemon.stop();
    const lines = denialLines(daemon);
    expect(lines).toHaveLength(21);
    expect(lines[0]).toContain('limit=l0 denied=21 ');
    expect(lines[20]).toContain('calls denied by further limits limits=10 denied=10 ');
  });
});

describe('a limit that learns, in the daemon', () => {
  test('a busy reply: the limit falls, the log says so, and /metrics has histograms of both', async () => {
    const daemon = await startWith(
      'limits: { sink: { adaptive: { rule: aimd, initial: 10, decreaseRatio: 0.5 }, match: db } }\n',
    );
    const url = `http://${daemon.addresses.http[0]}`;
    const hold = async (): Promise<string> => {
      const response = await fetch(`${url}/check?key=db&hold=1`);
      return ((await response.json()) as { permit: string }).permit;
    };
    const permits = [await hold(), await hold(), await hold()];
    for (const permit of permits)
      await fetch(`${url}/settle?permit=${permit}&outcome=busy`, { method: 'POST' });
    await daemon.waitForLog(
      /warn limit decreased by back-pressure limit=sink key=db from=10 to=5 cause=back-pressure times=1\n/,
    );
    const metrics = await (await fetch(`${url}/metrics`)).text();
    expect(metrics).toContain('sluice_concurrency_limit_sum{limit="sink"} 20\n'); // 10, 5, 5
    expect(metrics).toContain('sluice_concurrency_in_flight_bucket{limit="sink",le="2"} 2\n');
    expect(metrics).toContain('sluice_concurrency_in_flight_sum{limit="sink"} 6\n');
  });

  test('the rule delay: refusals set a pace, which the log, /inspect and /metrics show', async () => {
    const daemon = await startWith('limits: { sink: { adaptive: { max: 2 }, match: db } }\n');
    const url = `http://${daemon.addresses.http[0]}`;
    const call = async (outcome: string): Promise<void> => {
      const response = await fetch(`${url}/check?key=db&hold=1`);
      const { permit } = (await response.json()) as { permit?: string };
      const settled = `${url}/settle?permit=${permit}&outcome=${outcome}&rttMs=2`;
      if (permit !== undefined) await fetch(settled, { method: 'POST' });
    };
    for (let n = 0; n < 60; n++) await call('ok');
    for (let n = 0; n < 20; n++) await call('busy');
    await daemon.waitForLog(
      /warn limit decreased by back-pressure limit=sink key=db from=\d to=\d pace=[\d.]+ cause=refusal times=1\n/,
    );
    const inspected = (await (await fetch(`${url}/inspect?key=db`)).json()) as {
      limits: Record<string, unknown>[];
    };
    expect(inspected.limits[0]).toMatchObject({ name: 'sink', cause: 'refusal' });
    expect(inspected.limits[0].pacePerSecond).toBeGreaterThan(0);
    const metrics = await (await fetch(`${url}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_limit_adjustments_total\{limit="sink",cause="refusal"\} \d/m);
    expect(metrics).toMatch(/^sluice_pace\{limit="sink",key="db"\} [\d.]+$/m);
  });
});
