/** Draws a terminal screen as SVG, with its text and colours. */

const CHAR_PX = 8;
const LINE_PX = 18;
const MARGIN_PX = 20;
const COLUMNS = 80;

const GROUND = '#16202b';
const INK = '#dde4ea';
const STYLES = {
  0: '',
  1: 'font-weight="bold"',
  2: 'fill="#8b9aa8"',
  31: 'fill="#ff8a80"',
  32: 'fill="#7fd18b"',
  33: 'fill="#e8c468"',
  36: 'fill="#74c7ec"',
};

export function drawScreen(title, lines) {
  const width = 2 * MARGIN_PX + COLUMNS * CHAR_PX;
  const height = 2 * MARGIN_PX + lines.length * LINE_PX;
  const rows = lines.map((line, n) => {
    const y = MARGIN_PX + n * LINE_PX + 13;
    return `<text x="${MARGIN_PX}" y="${y}" xml:space="preserve">${spansOf(line)}</text>`;
  });
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13" fill="${INK}">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="${width}" height="${height}" rx="8" fill="${GROUND}"/>`,
    ...rows,
    '</svg>',
  ].join('\n')}\n`;
}

/** One tspan per colour. */
function spansOf(line) {
  const [first, ...rest] = line.split('\x1b[');
  const spans = rest.map((piece) => {
    const [, code, text] = /^(\d+)m(.*)$/.exec(piece);
    return (
      text && (code === '0' ? escaped(text) : `<tspan ${STYLES[code]}>${escaped(text)}</tspan>`)
    );
  });
  return [escaped(first), ...spans].join('');
}

const escaped = (text) =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
