import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';

const folder = mkdtempSync(join(tmpdir(), 'sluice-release-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const READY = {
  version: '1.2.0',
  repository: { type: 'git', url: 'git+https://git.example/limits/sluice.git' },
  homepage: 'https://git.example/limits/sluice',
  bugs: { url: 'https://git.example/limits/sluice/issues' },
};

function check(manifest: object, changelog: string) {
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
  writeFileSync(join(folder, 'CHANGELOG.md'), changelog);
  const script = resolve('scripts/check-release.mjs');
  const { status, stderr } = spawnSync(process.execPath, [script], {
    cwd: folder,
    encoding: 'utf8',
  });
  return { status, stderr };
}

describe('npm publish', () => {
  test('addresses and the day of the release are there: goes on', () => {
    expect(check(READY, '# Changelog\n\n## 1.2.0, 2027-01-31\n')).toEqual({
      status: 0,
      stderr: '',
    });
  });

  test('no addresses, no day: is refused, and each line names what is missing', () => {
    const { status, stderr } = check({ version: '1.2.0' }, '## 1.2.0, not yet released\n');
    expect(status).toBe(1);
    const lines = stderr.trimEnd().split('\n');
    const named = ['`repository.url`', '`homepage`', '`bugs.url`', '`## 1.2.0, YYYY-MM-DD`'];
    expect(lines).toHaveLength(named.length);
    for (const [n, name] of named.entries()) expect(lines[n]).toContain(name);
  });

  test('the day of another version: is refused', () => {
    expect(check(READY, '## 1.1.0, 2027-01-31\n').stderr).toContain('got `## 1.1.0');
  });

  test('package.json runs the check', () => {
    const { scripts } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(scripts.prepublishOnly).toBe('node scripts/check-release.mjs');
  });
});
