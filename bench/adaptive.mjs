/**
 * Compares the rules of adaptive concurrency with the best fixed limit on every sink of the laboratory, on virtual time.
 *
 *     npm run figures:adaptive                 all rules on all sinks, five seeds: some minutes
 *     npm run figures:adaptive -- --quick      two rules on four sinks, one seed
 *     npm run figures:adaptive -- --write      all; writes docs/adaptive.md
 *
 * The seeds begin at 101, so that a rule is not measured with the seeds it was developed with.
 */

import { CATALOGUE } from '../dist/simulator/laboratory/catalogue.js';
import { DEFAULT_RULES, findRule, RULE_NAMES } from '../dist/simulator/laboratory/rules.js';
import { evaluate, meanScore } from '../dist/simulator/laboratory/score.js';
import { SINK_CLASSES } from '../dist/simulator/laboratory/sink.js';
import { isToWrite, madeBy, percent, table, whole, writeFigures } from './report.mjs';

const isQuick = process.argv.includes('--quick');
const writes = isToWrite(!isQuick);

const RULES = isQuick ? DEFAULT_RULES : RULE_NAMES;
const SINKS = isQuick
  ? CATALOGUE.filter(({ name }) => ['mm1', 'halved', 'timeouts', 'slow-calls'].includes(name))
  : CATALOGUE;
const SEEDS = isQuick ? [101] : [101, 102, 103, 104, 105];

const ratio = (value) => value.toFixed(2);
const times = (value) => (Number.isFinite(value) ? `${ratio(value)} ×` : '–');

const rows = SINKS.map((sink) => {
  console.error(sink.name);
  return {
    sink,
    results: RULES.map((name) => evaluate({ name, create: findRule(name) }, sink, SEEDS)),
  };
});
const ofRule = (name, kind) =>
  rows
    .filter(({ sink }) => kind === undefined || sink.kind === kind)
    .map(({ results }) => results[RULES.indexOf(name)]);

/** The median score of each rule, and that of its worst seed; then the means. */
function scores() {
  const means = [...SINK_CLASSES, undefined]
    .filter((kind) => ofRule(RULES[0], kind).length > 0)
    .map((kind) => ({
      title: `**mean of ${kind ?? `all ${SINKS.length}`}**`,
      cells: RULES.map((name) => `**${ratio(meanScore(ofRule(name, kind)))}**`),
    }));
  const lines = rows.map(({ sink, results }) => ({
    title: `\`${sink.name}\`: ${sink.description}`,
    best: results[0].best.limit,
    cells: results.map(({ median, worstScore }) => `${ratio(median.score)} (${ratio(worstScore)})`),
  }));
  const columns = RULES.map((name, n) => [name, ({ cells }) => cells[n]]);
  return table(
    {
      sink: ({ title }) => title,
      'best fixed limit': ({ best }) => best ?? '',
      ...Object.fromEntries(columns),
    },
    [...lines, ...means],
  );
}

/** All measures of the rules that ship. */
const details = (name) =>
  table(
    {
      [name]: ({ sink }) => `\`${sink.name}\``,
      goodput: ({ median }) => percent(median.goodput, 0),
      'mean round trip': ({ median }) => times(median.meanRtt),
      p99: ({ median }) => times(median.p99Rtt),
      'in flight': ({ median }) => times(median.inFlight),
      refused: ({ median }) => percent(median.refused),
      more: moreOf,
    },
    ofRule(name),
  );

function moreOf({ sink, median, settlingMs }) {
  const seconds = (ms) => (Number.isFinite(ms) ? `${(ms / 1000).toFixed(1)} s` : 'never');
  return [
    ...(sink.clients ? [`Jain's index ${ratio(median.fairness)}`] : []),
    ...(sink.refusingSpell ? [`${whole(median.sentInSpell)} calls sent in the spell`] : []),
    ...(sink.changes ? [`settled: ${settlingMs.map(seconds).join(', ')}`] : []),
  ].join('; ');
}

const shipped = RULES.filter((name) => ['knee', 'aimd'].includes(name));
const text = [scores(), ...shipped.map(details)].join('\n\n');
console.log(text);
if (writes) {
  const command = 'npm run figures:adaptive -- --write';
  writeFigures('docs/adaptive.md', 'adaptive-rules', `${text}\n\n${madeBy(command)}`);
}
