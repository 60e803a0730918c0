/**
 * Strict parser of the Prometheus text format 0.0.4. Throws where a real scraper would tolerate the error
 * or drop the whole scrape: a duplicate series, a family that is not contiguous, a histogram whose buckets
 * do not add up.
 */

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface Family {
  readonly name: string;
  readonly type: string;
  readonly help: string;
  readonly samples: Sample[];
}

const HELP = /^# HELP ([a-zA-Z_:][\w:]*) ((?:[^\\]|\\\\|\\n)+)$/;
const TYPE = /^# TYPE ([a-zA-Z_:][\w:]*) (counter|gauge|histogram|summary|untyped)$/;
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (NaN|[+-]Inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$/s;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)/y;

export function parseExposition(text: string): Family[] {
  if (text === '') return [];
  if (!text.endsWith('\n')) throw new Error('the last line does not end');
  const families: Family[] = [];
  const lines = text.slice(0, -1).split('\n');
  for (let n = 0; n < lines.length; ) {
    const [, name, help] = HELP.exec(lines[n]) ?? fail(lines[n], 'HELP first');
    const [, typed, type] = TYPE.exec(lines[n + 1] ?? '') ?? fail(lines[n + 1], 'then TYPE');
    if (typed !== name) fail(lines[n + 1], `the TYPE of ${name}`);
    if (families.some((other) => other.name === name)) fail(lines[n], 'each family once');
    const samples: Sample[] = [];
    for (n += 2; n < lines.length && !lines[n].startsWith('#'); n++)
      samples.push(parseSample(lines[n]));
    const family = { name, type, help, samples };
    validateFamily(family);
    families.push(family);
  }
  return families;
}

function fail(line: string | undefined, expected: string): never {
  throw new Error(`expected ${expected}, got ${JSON.stringify(line)}`);
}

function parseSample(line: string): Sample {
  const [, name, labels = '', value] = SAMPLE.exec(line) ?? fail(line, 'a sample');
  return { name, labels: parseLabels(labels), value: Number(value.replace('Inf', 'Infinity')) };
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  LABEL.lastIndex = 0;
  while (LABEL.lastIndex < text.length) {
    const [, name, value] = LABEL.exec(text) ?? fail(text, 'labels');
    if (name in labels) fail(text, `label ${name} once`);
    labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
  }
  return labels;
}

const seriesOf = ({ name, labels }: Sample): string =>
  JSON.stringify([name, ...Object.entries(labels).sort()]);

function validateFamily({ name, type, samples }: Family): void {
  if (samples.length === 0) fail(name, 'a family with values');
  const series = samples.map(seriesOf);
  const twice = series.find((name, n) => series.indexOf(name) !== n);
  if (twice) fail(twice, 'each series once');
  if (type === 'histogram') validateHistogram(name, samples);
  else validateScalars(name, type, samples);
}

function validateScalars(name: string, type: string, samples: readonly Sample[]): void {
  for (const sample of samples) if (sample.name !== name) fail(sample.name, name);
  if ((type === 'counter') !== name.endsWith('_total'))
    fail(name, 'counters, and only they, _total');
  if (type === 'counter' && samples.some(({ value }) => !(value >= 0)))
    fail(name, 'no less than 0');
}

function validateHistogram(name: string, samples: readonly Sample[]): void {
  const groups = new Map<string, Sample[]>();
  for (const sample of samples) {
    const series = seriesWithoutLe(sample);
    groups.set(series, [...(groups.get(series) ?? []), sample]);
  }
  for (const group of groups.values()) validateBuckets(name, group);
}

const seriesWithoutLe = ({ labels: { le: _, ...labels } }: Sample): string =>
  JSON.stringify(Object.entries(labels).sort());

function validateBuckets(name: string, group: readonly Sample[]): void {
  const buckets = group.slice(0, -2);
  const [sum, count] = group.slice(-2);
  if (sum.name !== `${name}_sum` || count.name !== `${name}_count`) fail(name, '_sum and _count');
  const bounds = buckets.map(({ name: series, labels }) =>
    series === `${name}_bucket` && labels.le
      ? Number(labels.le.replace('Inf', 'Infinity'))
      : Number.NaN,
  );
  if (bounds.at(-1) !== Infinity) fail(name, '+Inf last');
  if (!bounds.every((bound, n) => n === 0 || bound > bounds[n - 1])) fail(name, 'bounds that grow');
  if (!buckets.every(({ value }, n) => n === 0 || value >= buckets[n - 1].value)) {
    fail(name, 'buckets that hold those before');
  }
  if (buckets.at(-1)?.value !== count.value) fail(name, 'as many as there are');
}

/** The value of one series, by its labels as they are written. */
export function sampleValue(text: string, name: string, labels: Record<string, string>): number {
  const wanted = seriesOf({ name, labels, value: 0 });
  const samples = parseExposition(text).flatMap((family) => family.samples);
  const found = samples.find((sample) => seriesOf(sample) === wanted);
  return found?.value ?? Number.NaN;
}
