/**
 * A report as one HTML file: no script, no request to another host, light or dark as its reader prefers. The content
 * security policy allows its style sheets by their hash, and nothing else.
 */

import { createHash } from 'node:crypto';
import { toPrintable } from '../../core/printable.ts';

const STYLE = `
:root { color-scheme: light dark; --back: #fff; --text: #1f2933; --muted: #5b6770; --line: #d9dfe5; --band: #f3f5f7; --bar: #4a86c5 }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --muted: #9aa6b2; --line: #30363d; --band: #161b22; --bar: #4a86c5 } }
body { margin: 0 auto; padding: 24px 20px 48px; max-width: 960px; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 18px; margin: 32px 0 8px }
p { margin: 4px 0 } .muted { color: var(--muted) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 20px 0 }
.figures div { background: var(--band); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px }
.figures dt { color: var(--muted); font-size: 13px } .figures dd { margin: 2px 0 0; font-weight: 600 }
.wide { overflow-x: auto } .wide > svg { max-width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; font-size: 14px }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 120px }
th { color: var(--muted); font-weight: 600 }
.bar { stroke: var(--line); fill: var(--band) } .bar + rect { fill: var(--bar) }
li { overflow-wrap: anywhere }
`;

/** A page of `main`, whose pictures are SVG. */
export function htmlPage(title: string, main: string): string {
  const styles = [
    STYLE,
    ...new Set([...main.matchAll(/<style>([^<]*)<\/style>/g)].map(([, css]) => css)),
  ];
  const policy = `default-src 'none'; style-src ${styles.map(hashOf).join(' ')}; base-uri 'none'; form-action 'none'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>${escapeHtml(title)}</title>
<style>${STYLE}</style>
</head>
<body>
<main>
${main}
</main>
</body>
</html>
`;
}

/** Names and values in boxes. */
export const figureBoxes = (rows: readonly (readonly [string, string])[]): string =>
  `<dl class="figures">
${rows
  .map(([name, value]) => `<div><dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}</dd></div>`)
  .join('\n')}
</dl>`;

export type Cell = string | { readonly html: string };

export function htmlTable(head: readonly string[], rows: readonly (readonly Cell[])[]): string {
  const cells = (row: readonly Cell[]) =>
    row
      .map((cell) => `<td>${typeof cell === 'string' ? escapeHtml(cell) : cell.html}</td>`)
      .join('');
  return `<div class="wide"><table>
<thead><tr>${head.map((name) => `<th scope="col">${escapeHtml(name)}</th>`).join('')}</tr></thead>
<tbody>
${rows.map((row) => `<tr>${cells(row)}</tr>`).join('\n')}
</tbody></table></div>`;
}

const hashOf = (css: string): string =>
  `'sha256-${createHash('sha256').update(css).digest('base64')}'`;

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

export const escapeHtml = (text: string): string =>
  toPrintable(text).replace(/[&<>"']/g, (character) => ENTITIES[character]);
