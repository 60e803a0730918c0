/** Builds the page into dist/page, with fixed file names: the daemon serves exactly these. */

import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  base: './',
  publicDir: 'public',
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../dist/page',
    emptyOutDir: false, // names are fixed: nothing is left behind
    modulePreload: false,
    assetsInlineLimit: 0, // the content security policy refuses data: addresses
    rolldownOptions: {
      output: { entryFileNames: 'page.js', assetFileNames: 'page.[ext]', codeSplitting: false },
    },
  },
});
