/**
 * Builds the playground into one file, dist/page/playground.html, that works from a disk: script and style are part of it.
 * Its content security policy allows exactly these two, by their hashes, and no request.
 */

import { createHash } from 'node:crypto';
import { defineConfig } from 'vite';

const hashOf = (text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** Puts the built script and style into the page. */
const inline = {
  name: 'inline',
  enforce: 'post',
  generateBundle(_, bundle) {
    const files = Object.values(bundle);
    const named = (end) => files.find(({ fileName }) => fileName.endsWith(end));
    const [html, js, css] = ['.html', '.js', '.css'].map(named);
    const script = js.code.trim().replaceAll('</script', '<\\/script');
    const style = String(css.source).trim();
    const policy = [
      "default-src 'none'",
      `script-src ${hashOf(script)}`,
      `style-src ${hashOf(style)}`,
      ...["base-uri 'none'", "form-action 'none'"],
    ].join('; ');
    const head = [
      `<meta http-equiv="Content-Security-Policy" content="${policy}" />`,
      `<style>${style}</style>`,
    ].join('\n    ');
    html.source = String(html.source)
      .replace(/\s*<link rel="stylesheet"[^>]*>/, '')
      .replace(/\s*<script type="module"[^>]*><\/script>/, '')
      .replace('<title>', () => `${head}\n    <title>`)
      .replace('</body>', () => `  <script type="module">${script}</script>\n  </body>`);
    for (const { fileName } of [js, css]) delete bundle[fileName];
  },
};

export default defineConfig({
  root: import.meta.dirname,
  base: './',
  publicDir: false,
  logLevel: 'warn',
  plugins: [inline],
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../dist/page',
    emptyOutDir: false,
    modulePreload: false,
    rolldownOptions: {
      input: 'page/playground.html',
      output: { entryFileNames: 'playground.js', codeSplitting: false },
    },
  },
});
