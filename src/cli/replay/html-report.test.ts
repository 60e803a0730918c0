import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const place = createTempDir();
afterAll(() => place.remove());

const EVIL = '<img src=x onerror=alert(1)>"&\\u202e';

async function htmlOf(text: string, ...words: string[]): Promise<string> {
  const [log, html] = [place.file('log', text), join(place.path, 'report.html')];
  const limit = ['--limit', 'bucket 1/h burst 1'];
  const { code } = await runCliAtAsync(100, ['replay', log, ...limit, '--html', html, ...words]);
  expect(code).toBe(0);
  return readFileSync(html, 'utf8');
}

const call = (ip: string): string => `{"ts":1791633600,"ip":${JSON.stringify(ip)}}\n`;

describe('replay --html', () => {
  test('the policy allows its own style sheets by hash, and nothing else', async () => {
    const html = await htmlOf(call('a') + call('a'));
    const [, policy = ''] =
      /<meta http-equiv="Content-Security-Policy" content="([^"]*)">/.exec(html) ?? [];
    const hashes = [...html.matchAll(/<style>([^<]*)<\/style>/g)].map(
      ([, css]) => `'sha256-${createHash('sha256').update(css).digest('base64')}'`,
    );
    expect(hashes.length).toBe(2);
    expect(policy).toBe(
      `default-src 'none'; style-src ${hashes.join(' ')}; base-uri 'none'; form-action 'none'`,
    );
    expect(html.indexOf('Content-Security-Policy')).toBeLessThan(html.indexOf('<style>'));
  });

  test('has no script, no style attribute and no address of another host', async () => {
    const html = await htmlOf(call('a') + call('a'));
    expect(html).not.toMatch(/<script|\sstyle=|\son\w+=|\b(?:src|href)=|url\(|@import/i);
    expect(html.match(/https?:\/\/[^"' ]+/g)).toEqual(['http://www.w3.org/2000/svg']);
  });

  test('keys, bad lines and names of files are text, whatever they hold', async () => {
    const html = await htmlOf(
      `${call(EVIL)}${call(EVIL)}<script>bad line</script>\n`,
      '--format',
      'json',
    );
    expect(html).toContain('&lt;img src=x onerror=alert(1)&gt;&quot;&amp;');
    expect(html).toContain('&lt;script&gt;bad line&lt;/script&gt;');
    expect(html).not.toMatch(/<img|<script/);
  });

  test('shows who, when and how much; a log without calls has a report too', async () => {
    const html = await htmlOf(call('a') + call('a') + call('b'));
    for (const shown of [
      '<td>a</td>',
      'denied keys',
      '1 of 2, 50.0 %',
      '<svg',
      '2026-10-10 12:00:00',
    ])
      expect(html).toContain(shown);
    expect(await htmlOf('')).toContain('No calls.');
  });

  test('a directory that is missing is a usage error before the log is read', async () => {
    const words = ['replay', 'none.log', '--limit', 'bucket 1/s', '--html', 'nowhere/report.html'];
    const { code, err } = await runCliAtAsync(100, words);
    expect(code).toBe(2);
    expect(err.join()).toMatch(/expected a file in a directory that exists, got "nowhere/);
  });
});
