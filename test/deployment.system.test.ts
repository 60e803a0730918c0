/**
 * The files of deploy/: the image, the Helm chart, the install script; run as far as no container engine is needed.
 *
 * Code blocks of docs/how-to/deploy.md refer to it.
 */

import { execFile, spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, delimiter, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { DockerfileParser } from 'dockerfile-ast';
import { validate } from 'dockerfile-utils';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse, parseDocument } from 'yaml';
import { daemonFixture, exchange } from './support/daemon.ts';
import { renderChart } from './support/helm-template.ts';
import { kubernetesMistakes } from './support/kubernetes-types.ts';
import { hasRuntimes, RUNTIME_NAMES, runtimePath } from './support/runtimes.ts';
import { freeUdpPorts, shellcheck } from './support/services.ts';

const run = promisify(execFile);
const fixture = daemonFixture();
afterAll(fixture.end);

const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
const LOOPBACK = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

const HTTPS = "{ at: '0.0.0.0:8443', tls: { cert: a.crt, key: a.key } }";

/** `sluice config check` of the build. */
const checkConfig = (file: string, env: NodeJS.ProcessEnv) =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', 'config', 'check', file], {
    encoding: 'utf8',
    env: { PATH: process.env.PATH, ...env },
  });

describe('deploy/docker/Dockerfile', () => {
  const text = readFileSync('deploy/docker/Dockerfile', 'utf8');
  const instructions = DockerfileParser.parse(text).getInstructions();
  const argumentsOf = (keyword: string): string[][] =>
    instructions
      .filter((each) => each.getKeyword() === keyword)
      .map((each) => each.getArguments().map((argument) => argument.getValue()));
  /** Copied from the build context, not from the first stage. */
  const copied = argumentsOf('COPY').filter(([source]) => !source.startsWith('/'));

  test('the linter finds nothing', () => {
    expect(validate(text).map(({ message }) => message)).toEqual([]);
  });

  test.skipIf(shellcheck() === undefined)('ShellCheck finds nothing in its commands', () => {
    const [, health = ''] = /CMD (sluice check.*)$/m.exec(text) ?? [];
    const commands = [...argumentsOf('RUN').map((args) => args.join(' ')), health];
    const input = `#!/bin/sh\n${commands.join('\n')}\n`;
    const { stdout } = spawnSync('shellcheck', ['-'], { input, encoding: 'utf8' });
    expect([commands.length, stdout]).toEqual([4, '']);
  });

  test('its user is not root, its health check is a command of the daemon', () => {
    expect(argumentsOf('USER')).toEqual([['1000:1000']]);
    expect(argumentsOf('HEALTHCHECK').flat().join(' ')).toContain('CMD sluice check');
    expect(argumentsOf('ENTRYPOINT')).toHaveLength(1);
  });

  test('what it copies is in the build context', () => {
    const ignored = readFileSync('deploy/docker/Dockerfile.dockerignore', 'utf8').split('\n');
    for (const source of copied.flatMap((args) => args.slice(0, -1))) {
      expect(existsSync(source), source).toBe(true);
      expect(ignored).toContain(`!${source}`);
    }
  });

  test('a mounted configuration keeps its listeners: its variables replace none', () => {
    const env = Object.fromEntries(
      argumentsOf('ENV').flatMap((args) => args.map((each) => each.split('=') as [string, string])),
    );
    const file = fixture
      .place()
      .file('sluice.yaml', `listen: { line: off, resp: off, http: ${HTTPS} }\n`);
    const { status, stdout } = checkConfig(file, env);
    expect({ status, stdout }).toEqual({
      status: 0,
      stdout: expect.stringMatching(/line {2}off\n {2}resp {2}off\n {2}http {2}0\.0\.0\.0:8443\n$/),
    });
    const [shipped = ''] = argumentsOf('COPY').find((args) => args[1] === env.SLUICE_CONFIG) ?? [];
    expect(checkConfig(shipped, env).stdout).toMatch(
      /line {2}0\.0\.0\.0:7610\n {2}resp {2}0\.0\.0\.0:7611\n {2}http {2}0\.0\.0\.0:7612\n$/,
    );
  });

  const [nodeOfImage, ...otherImages] = new Set(
    argumentsOf('FROM').map(([image]) => image.replace(/^node:(\d+)-.*$/, 'Node $1')),
  );

  test('both stages have one version of Node, which the suite runs the package on', () => {
    expect(otherImages).toEqual([]);
    expect(RUNTIME_NAMES).toContain(nodeOfImage);
  });

  describe.skipIf(!hasRuntimes())(`its steps in a folder, on ${nodeOfImage}`, () => {
    const node = runtimePath(nodeOfImage);
    const env = { ...process.env, PATH: `${dirname(node)}${delimiter}${process.env.PATH}` };
    const { path } = fixture.place();
    const stage = join(path, 'build');
    const image = join(path, 'image');

    // The steps of the first stage, with the packages that are installed here; then the copies of the second.
    beforeAll(async () => {
      mkdirSync(stage);
      for (const args of copied)
        for (const source of args.slice(0, -1))
          cpSync(source, join(stage, source), { recursive: true });
      symlinkSync(join(process.cwd(), 'node_modules'), join(stage, 'node_modules'));
      const [build] = argumentsOf('RUN').filter((args) => args.includes('build:daemon'));
      await run('sh', ['-c', build.join(' ')], { cwd: stage, env });
      for (const args of argumentsOf('COPY')) {
        const target = args.at(-1) ?? '';
        if (!target.startsWith('/')) continue;
        for (const source of args.slice(0, -1)) {
          const name = target.endsWith('/') ? join(target, basename(source)) : target;
          cpSync(source.startsWith('/build') ? join(path, source) : source, join(image, name));
        }
      }
    }, 180_000);

    test('that Node is the version of the image', async () => {
      const { stdout } = await run(node, ['--version']);
      expect(`Node ${/^v(\d+)\./.exec(stdout)?.[1]}`).toBe(nodeOfImage);
    });

    test('the daemon starts with the variables of the image, and its health check succeeds until it stops', async () => {
      const variables = Object.fromEntries(
        argumentsOf('ENV').flatMap((args) =>
          args.map((each) => each.split('=') as [string, string]),
        ),
      );
      expect(Object.keys(variables)).toContain('SLUICE_CONFIG');
      const program = join(image, 'usr/local/lib/sluice/sluice.cjs');
      const daemon = await fixture.start(
        LOOPBACK, // in place of the fixed ports
        {
          ...variables,
          SLUICE_CONFIG: join(image, variables.SLUICE_CONFIG),
          SLUICE_SNAPSHOT: join(path, 'state'),
        },
        [node, program],
      );
      expect(await exchange(daemon.addresses.line[0], 'a\n')).toBe('OK\n');
      const at = `--at ${daemon.addresses.resp[0]}`;
      const [, command = ''] = /CMD (sluice check.*)$/m.exec(text) ?? [];
      const script = command
        .replace('sluice', `"${node}" "${program}"`)
        .replace('--cost', `${at} --cost`);
      const health = async (): Promise<number | null> =>
        run('sh', ['-c', script]).then(
          () => 0,
          ({ code }) => code,
        );
      expect(await health()).toBe(0);
      await daemon.stop();
      expect(await health()).toBe(1);
      expect(existsSync(join(path, 'state'))).toBe(true);
    });
  });
});

test('compose.yaml: builds the Dockerfile, with a root file system that is read-only', () => {
  const { services } = parse(readFileSync('compose.yaml', 'utf8'));
  expect(existsSync(services.sluice.build.dockerfile)).toBe(true);
  expect(services.sluice.read_only).toBe(true);
  const [mounted = ''] = services.sluice.volumes[0].split(':');
  expect(checkConfig(mounted, services.sluice.environment).stdout).toContain('http  0.0.0.0:7612');
});

describe('deploy/helm/sluice', () => {
  const folder = 'deploy/helm/sluice';
  const chart = parse(readFileSync(`${folder}/Chart.yaml`, 'utf8'));
  const templates = Object.fromEntries(
    readdirSync(`${folder}/templates`).map((name) => [
      name,
      readFileSync(`${folder}/templates/${name}`, 'utf8'),
    ]),
  );
  const valuesText = readFileSync(`${folder}/values.yaml`, 'utf8');

  /** The objects of the chart by kind and name, with the default values and `set`. */
  function render(set: (values: ReturnType<typeof parse>) => void) {
    const values = parse(valuesText);
    set(values);
    const rendered = renderChart(templates, {
      Values: values,
      Chart: { Name: chart.name, AppVersion: chart.appVersion },
      Release: { Name: 'edge', Namespace: 'limits', Service: 'Helm' },
    });
    const objects = Object.entries(rendered)
      .filter(([name]) => name.endsWith('.yaml'))
      .map(([name, text]) => {
        const document = parseDocument(text);
        expect(document.errors, name).toEqual([]);
        return document.toJS();
      })
      .filter((object) => object !== null);
    return new Map(objects.map((object) => [`${object.kind} ${object.metadata.name}`, object]));
  }

  const withKey = (values: { secrets: { peersKey: string } }): void => {
    values.secrets.peersKey = 'a-key-of-all-the-daemons';
  };

  test('version and application version are those of the package', () => {
    expect([chart.version, chart.appVersion]).toEqual([version, version]);
  });

  test('default values: renders objects whose references fit together', () => {
    const objects = render(withKey);
    expect([...objects.keys()].sort()).toEqual([
      'ConfigMap edge-sluice',
      'PodDisruptionBudget edge-sluice',
      'Secret edge-sluice',
      'Service edge-sluice',
      'Service edge-sluice-peers',
      'StatefulSet edge-sluice',
    ]);
    const { spec } = objects.get('StatefulSet edge-sluice');
    expect(objects.has(`Service ${spec.serviceName}`)).toBe(true);
    const pod = spec.template;
    for (const service of ['edge-sluice', 'edge-sluice-peers'])
      expect(pod.metadata.labels).toMatchObject(objects.get(`Service ${service}`).spec.selector);
    expect(pod.metadata.labels).toMatchObject(spec.selector.matchLabels);
    const [container] = pod.spec.containers;
    const volumes = pod.spec.volumes.map(({ name }: { name: string }) => name);
    expect(container.volumeMounts.map(({ name }: { name: string }) => name)).toEqual(volumes);
    const ports = container.ports.map(({ name }: { name: string }) => name);
    expect(ports).toEqual(['line', 'resp', 'http', 'peers']);
    for (const probe of ['livenessProbe', 'readinessProbe', 'startupProbe'])
      expect(container[probe].httpGet.port).toBe('http');
    const secret = objects.get('Secret edge-sluice').stringData;
    for (const { valueFrom } of container.env)
      if (valueFrom && !valueFrom.secretKeyRef.optional)
        expect(secret).toHaveProperty(valueFrom.secretKeyRef.key);
  });

  const withEverythingElse = (values: ReturnType<typeof parse>): void => {
    values.secrets.existingSecret = 'mine';
    values.snapshot.persistent = true;
    values.snapshot.storageClass = 'fast';
    values.serviceMonitor.enabled = true;
    values.nodeSelector = { disk: 'fast' };
    values.tolerations = [{ key: 'edge', operator: 'Exists' }];
    values.affinity = { podAntiAffinity: {} };
    values.podAnnotations = { team: 'limits' };
    values.tls.secretName = 'edge-tls';
  };

  test('objects have the fields and types of the API of Kubernetes, and no others', async () => {
    const objects = [...render(withKey).values(), ...render(withEverythingElse).values()];
    const messages = await kubernetesMistakes(objects, fixture.place().path);
    expect(messages).toBe('');
  }, 120_000);

  test('every other value: renders as well', () => {
    const objects = render(withEverythingElse);
    expect(objects.has('Secret edge-sluice')).toBe(false);
    expect(objects.has('ServiceMonitor edge-sluice')).toBe(true);
    const { spec } = objects.get('StatefulSet edge-sluice');
    expect(spec.volumeClaimTemplates[0].spec.storageClassName).toBe('fast');
    expect(spec.template.metadata.annotations.team).toBe('limits');
    expect(spec.template.spec).toMatchObject({
      nodeSelector: { disk: 'fast' },
      tolerations: [{ key: 'edge', operator: 'Exists' }],
    });
    expect(JSON.stringify(spec)).not.toContain('"name":"edge-sluice","key"');
  });

  /** The configuration and the variables of the rendered objects, as the daemon reads them. */
  function checkRendered(objects: ReturnType<typeof render>) {
    const text = objects.get('ConfigMap edge-sluice').data['sluice.yaml'];
    const [container] = objects.get('StatefulSet edge-sluice').spec.template.spec.containers;
    const env = Object.fromEntries(
      container.env.map(({ name, value = 'a-key-of-all-the-daemons' }: Record<string, string>) => [
        name,
        value,
      ]),
    );
    return { ...checkConfig(fixture.place().file('sluice.yaml', text), env), text, container };
  }

  test('listeners: on all addresses of the pod, and those of `config.listen` in their place', () => {
    expect(checkRendered(render(withKey)).stdout).toMatch(
      /line {2}0\.0\.0\.0:7610\n {2}resp {2}0\.0\.0\.0:7611\n {2}http {2}0\.0\.0\.0:7612\n/,
    );
    const own = render((values) => {
      withKey(values);
      values.config.listen = { line: 'off', resp: 'off', http: parse(HTTPS) };
    });
    const { status, stdout } = checkRendered(own);
    expect({ status, stdout }).toEqual({
      status: 0,
      stdout: expect.stringMatching(/line {2}off\n {2}resp {2}off\n {2}http {2}0\.0\.0\.0:8443\n/),
    });
  });

  test('tls.secretName: mounts the certificates, and every listener, probe and monitor uses TLS', () => {
    const objects = render((values) => {
      withKey(values);
      values.tls.secretName = 'edge-tls';
      values.serviceMonitor.enabled = true;
    });
    const { status, text, container } = checkRendered(objects);
    expect(status).toBe(0);
    const { volumes } = objects.get('StatefulSet edge-sluice').spec.template.spec;
    const mount = container.volumeMounts.find(({ name }: { name: string }) => name === 'tls');
    expect(volumes).toContainEqual({ name: 'tls', secret: { secretName: 'edge-tls' } });
    for (const protocol of ['line', 'resp', 'http'])
      expect(parse(text).listen[protocol].tls).toEqual({
        cert: `${mount.mountPath}/tls.crt`,
        key: `${mount.mountPath}/tls.key`,
      });
    for (const probe of ['livenessProbe', 'readinessProbe', 'startupProbe'])
      expect(container[probe].httpGet.scheme).toBe('HTTPS');
    const [endpoint] = objects.get('ServiceMonitor edge-sluice').spec.endpoints;
    expect(endpoint).toMatchObject({
      scheme: 'https',
      tlsConfig: { ca: { secret: { name: 'edge-tls' } }, serverName: 'edge-sluice.limits.svc' },
    });
  });

  test('peers without a key: refuses to render, and names the value', () => {
    expect(() => render(() => {})).toThrow('secrets.peersKey');
  });

  test('every value is used by a template', () => {
    const used = Object.values(templates).join('\n');
    const leaves = (value: unknown, path: string): string[] =>
      value !== null &&
      typeof value === 'object' &&
      !Array.isArray(value) &&
      path !== '.config' &&
      path !== '.resources' &&
      Object.keys(value).length > 0
        ? Object.entries(value).flatMap(([name, each]) => leaves(each, `${path}.${name}`))
        : [path];
    for (const path of leaves(parse(valuesText), '')) expect(used).toContain(`.Values${path}`);
  });

  test('the daemon accepts configuration and environment of the rendered objects', async () => {
    const objects = render(withKey);
    const place = fixture.place();
    const config = place.file(
      'sluice.yaml',
      objects.get('ConfigMap edge-sluice').data['sluice.yaml'],
    );
    const [container] = objects.get('StatefulSet edge-sluice').spec.template.spec.containers;
    const secret = objects.get('Secret edge-sluice').stringData;
    const environment = Object.fromEntries(
      container.env.flatMap(({ name, value, valueFrom }: Record<string, never>) => {
        const known =
          value ?? secret[(valueFrom as { secretKeyRef: { key: string } }).secretKeyRef.key];
        return known === undefined ? [] : [[name, known]];
      }),
    );
    const [port] = await freeUdpPorts(1);
    const daemon = await fixture.start(LOOPBACK, {
      ...environment,
      SLUICE_CONFIG: config,
      SLUICE_SNAPSHOT: join(place.path, 'state'),
      SLUICE_PEERS: `localhost:${port}`, // in place of the name of the Service
    });
    const { path } = container.readinessProbe.httpGet;
    expect((await fetch(`http://${daemon.addresses.http[0]}${path}`)).status).toBe(200);
    expect(await daemon.stop()).toBe(0);
  });
});

describe('deploy/install.sh', () => {
  const { path: destdir } = fixture.place();
  const built = fixture.place().path;
  const script = join(built, 'deploy/install.sh');
  const install = (...args: string[]) =>
    spawnSync('sh', [script, ...args], {
      encoding: 'utf8',
      env: { PATH: process.env.PATH, DESTDIR: destdir, PREFIX: '/usr' },
    });
  const at = (path: string): string => join(destdir, path);

  beforeAll(() => {
    for (const name of ['deploy', 'LICENSE']) cpSync(name, join(built, name), { recursive: true });
  });

  test.skipIf(shellcheck() === undefined)('ShellCheck finds nothing', () => {
    const debian = ['build.sh', 'postinst', 'prerm', 'postrm'].map((name) =>
      join('deploy/debian', name),
    );
    const { status, stdout } = spawnSync('shellcheck', [script, ...debian], { encoding: 'utf8' });
    expect({ status, stdout }).toEqual({ status: 0, stdout: '' });
  });

  test('without a build: says which command makes it', () => {
    const { status, stderr } = install();
    expect({ status, stderr }).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('npm run build:daemon'),
    });
  });

  test('installs command, unit, configuration and licences; again, it keeps the configuration', () => {
    const standalone = join(built, 'dist/standalone');
    mkdirSync(standalone, { recursive: true });
    writeFileSync(join(standalone, 'sluice.cjs'), '#!/usr/bin/env node\nconsole.log("one");\n');
    writeFileSync(join(standalone, 'THIRD-PARTY-LICENSES.txt'), 'licences');
    expect(install()).toMatchObject({ status: 0, stderr: '' });
    const run = (): string => spawnSync(at('usr/bin/sluice'), { encoding: 'utf8' }).stdout;
    expect(run()).toBe('one\n');
    expect(lstatSync(at('usr/bin/sluice')).isSymbolicLink()).toBe(true);
    expect(readFileSync(at('etc/systemd/system/sluice.service'), 'utf8')).toContain(
      'ExecStart=/usr/bin/sluice serve --config /etc/sluice/sluice.yaml',
    );
    expect(existsSync(at('usr/lib/sluice/LICENSE'))).toBe(true);
    expect(statSync(at('etc/sluice/sluice.yaml')).mode & 0o777).toBe(0o644);

    writeFileSync(at('etc/sluice/sluice.yaml'), 'limits: {}\n');
    writeFileSync(join(standalone, 'sluice.cjs'), '#!/usr/bin/env node\nconsole.log("two");\n');
    expect(install().status).toBe(0);
    expect(run()).toBe('two\n');
    expect(readFileSync(at('etc/sluice/sluice.yaml'), 'utf8')).toBe('limits: {}\n');
  });

  test('--uninstall: removes everything but the configuration', () => {
    expect(install('--uninstall').status).toBe(0);
    expect(existsSync(at('usr/bin/sluice'))).toBe(false);
    expect(existsSync(at('usr/lib/sluice'))).toBe(false);
    expect(existsSync(at('etc/sluice/sluice.yaml'))).toBe(true);
    rmSync(at('etc'), { recursive: true });
  });

  test('an unknown option is an error', () => {
    expect(install('--exectuable')).toMatchObject({ status: 2 });
  });
});
