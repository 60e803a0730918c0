/** What a bundle costs a page: sizes by esbuild, minified and gzipped, of programs that import the built package. */

import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { describe, expect, test } from 'vitest';

/** The gzipped size of a program, and the files of the package in it. */
async function bundle(program: string): Promise<{ bytes: number; files: string[] }> {
  const result = await build({
    stdin: { contents: program, resolveDir: '.' },
    ...({ bundle: true, minify: true, write: false, metafile: true } as const),
    ...({ format: 'esm', platform: 'browser', logLevel: 'silent' } as const),
  });
  const [{ contents }] = result.outputFiles;
  const files = Object.keys(result.metafile.inputs).filter((name) => name !== '<stdin>');
  return { bytes: gzipSync(contents, { level: 9 }).length, files };
}

const KIB = 1024;

/** The files that a script loads at once, itself included. */
function loadedBy(file: string, known = new Set<string>()): Set<string> {
  if (known.has(file)) return known;
  known.add(file);
  for (const [, target] of readFileSync(file, 'utf8').matchAll(/^import .*?"(\.[^"]+)";$/gm))
    loadedBy(join(dirname(file), target), known);
  return known;
}

describe('bundle size', () => {
  test.each(['bucket({ rate: "10/s" })', 'spacing({ every: "6s" })'])(
    'sluice/small: a limiter of %s takes at most 6 KiB',
    async (rule) => {
      const [kind] = rule.split('(');
      const program = `import { ${kind}, smallLimiter } from 'sluice/small';
        console.log(smallLimiter(${rule}).check('key'));`;
      const { bytes, files } = await bundle(program);
      expect(bytes).toBeLessThanOrEqual(6 * KIB);
      expect(bytes).toBeGreaterThan(KIB);
      expect(files.filter((file) => file.includes('library'))).toEqual([]);
    },
  );

  test('sluice: the named form with every rule takes at most 56 KiB', async () => {
    const { bytes } = await bundle(`import { limiter } from 'sluice';
      console.log(limiter({ limit: { bucket: { rate: '10/s' } } }).check('key'));`);
    expect(bytes).toBeLessThanOrEqual(56 * KIB);
  });

  test('worker process of the daemon: loads its channel, and no limits', () => {
    const names = [...loadedBy('dist/bin/workers/worker.js')].map((file) => basename(file)).sort();
    expect(names).toEqual(['core.js', 'worker-warnings.js', 'worker.js']); // the channel is in the second
  });

  test.each(['dist/esm', 'dist/cjs', 'dist/bin'])(
    '%s: scripts have only ASCII characters',
    (folder) => {
      const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
      const scripts = files.filter((name) => name.endsWith('.js'));
      expect(scripts.length).toBeGreaterThan(0);
      const others = scripts.filter((name) =>
        /[^\0-\x7f]/.test(readFileSync(join(folder, name), 'latin1')),
      );
      expect(others).toEqual([]);
    },
  );
});
