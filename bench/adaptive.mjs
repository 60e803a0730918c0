/**
 * Compares the rules of adaptive concurrency with the best fixed limit on every sink of the laboratory, on virtual time.
 *
 *     npm run figures:adaptive                 all rules on all sinks, five seeds: some minutes
 *     npm run figures:adaptive -- --quick      two rules on four sinks, one seed
 *     npm run figures:adaptive -- --write      all; writes docs/explanation/adaptive.md and docs/pictures/adaptive-*.svg
 *
 * The page has the means and the weak sinks. Every sink, every measure and the settling times are printed only.
 *
 * The seeds begin at 301, so that a rule is not measured with the seeds it was developed with.
 */

import { CATALOGUE } from '../dist/simulator/laboratory/catalogue.js';
import { DEFAULT_RULES, findRule, RULE_NAMES } from '../dist/simulator/laboratory/rules.js';
import { evaluate, meanScore } from '../dist/simulator/laboratory/score.js';
import { SINK_CLASSES } from '../dist/simulator/laboratory/sink.js';
import { mean } from '../dist/simulator/statistics.js';
import { inspections } from './adaptive-inspect.mjs';
import { writePictures } from './adaptive-pictures.mjs';
import { isToWrite, madeBy, median, percent, table, whole, writeFigures } from './report.mjs';

const isQuick = process.argv.includes('--quick');
const writes = isToWrite(!isQuick);

const RULES = isQuick ? DEFAULT_RULES : RULE_NAMES;
const SINKS = isQuick
  ? CATALOGUE.filter(({ name }) => ['mm1', 'halved', 'timeouts', 'slow-calls'].includes(name))
  : CATALOGUE;
const SEEDS = isQuick ? [301] : [301, 302, 303, 304, 305, 306, 307];

const ratio = (value) => value.toFixed(2);
const evaluateRule = (name, sink, seeds) => evaluate({ name, create: findRule(name) }, sink, seeds);
const times = (value) => (Number.isFinite(value) ? `${ratio(value)} ×` : '–');

const findSink = (name) => CATALOGUE.find((sink) => sink.name === name);

/** One run of each rule, with the seed on which the first rule has its median score. */
function runOn(rules, sink) {
  const scores = SEEDS.map((seed) => evaluateRule(rules[0], sink, [seed]).median.score);
  const seed = SEEDS[scores.indexOf(median(scores))];
  return rules.map((name) => evaluateRule(name, sink, [seed]));
}

const PICTURES = new URL('../docs/pictures/', import.meta.url);
const rows = SINKS.map((sink) => {
  console.error(sink.name);
  return {
    sink,
    results: RULES.map((name) => evaluateRule(name, sink, SEEDS)),
  };
});
const ofRule = (name, kind) =>
  rows
    .filter(({ sink }) => kind === undefined || sink.kind === kind)
    .map(({ results }) => results[RULES.indexOf(name)]);

const CLASSES = SINK_CLASSES.filter((kind) => ofRule(RULES[0], kind).length > 0);

const meanWorst = (evaluations) =>
  mean(evaluations.map(({ worstScore }) => Math.min(1, worstScore)));
const meanOf = (evaluations) =>
  `${ratio(meanScore(evaluations))} (${ratio(meanWorst(evaluations))})`;

/** The mean score of each rule, by class of sinks; in brackets that of the worst seeds. */
const means = () =>
  table(
    {
      rule: ({ name }) => `\`${name}\``,
      ...Object.fromEntries(
        CLASSES.map((kind) => [
          `${kind} (${ofRule(RULES[0], kind).length})`,
          ({ name }) => meanOf(ofRule(name, kind)),
        ]),
      ),
      [`all ${SINKS.length}`]: ({ name }) => `**${meanOf(ofRule(name))}**`,
    },
    RULES.map((name) => ({ name })),
  );

const isWeak = ({ median: { score }, worstScore }) => score < 0.75 || worstScore < 0.6;

/** The sinks on which the default rule does badly, the worst first. */
function weaknesses() {
  const weak = rows
    .map(({ sink, results }) => {
      const [own, ...others] = results;
      const other = others.reduce((a, b) => (b.median.score > a.median.score ? b : a));
      return { sink, own, other };
    })
    .filter(({ own }) => isWeak(own))
    .toSorted((a, b) => a.own.median.score - b.own.median.score);
  return table(
    {
      sink: ({ sink }) => `\`${sink.name}\`: ${sink.description}`,
      'score (worst)': ({ own }) => `${ratio(own.median.score)} (${ratio(own.worstScore)})`,
      goodput: ({ own }) => percent(own.median.goodput, 0),
      'mean round trip': ({ own }) => times(own.median.meanRtt),
      'in flight': ({ own }) => times(own.median.inFlight),
      "Jain's index": ({ sink, own }) => (sink.clients ? ratio(own.median.fairness) : ''),
      'best other rule': ({ other }) => `\`${other.rule}\` ${ratio(other.median.score)}`,
    },
    weak,
  );
}

/** The median score of each rule, and that of its worst seed. */
function scores() {
  const lines = rows.map(({ sink, results }) => ({
    title: `\`${sink.name}\`: ${sink.description}`,
    best: results[0].best.limit,
    cells: results.map(({ median, worstScore }) => `${ratio(median.score)} (${ratio(worstScore)})`),
  }));
  const columns = RULES.map((name, n) => [name, ({ cells }) => cells[n]]);
  return table(
    {
      sink: ({ title }) => title,
      'best fixed limit': ({ best }) => best,
      ...Object.fromEntries(columns),
    },
    lines,
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
    ...(sink.spell
      ? [
          `${whole(median.sentInSpell)} calls sent in the spell, at most ${ratio(median.peakInSpell)} × in flight`,
        ]
      : []),
    ...(sink.changes ? [`settled: ${settlingMs.map(seconds).join(', ')}`] : []),
  ].join('; ');
}

const shipped = RULES.filter((name) => ['delay', 'aimd'].includes(name));
const text = [scores(), ...shipped.map(details)].join('\n\n');
const state = `\`\`\`\n${inspections()}\n\`\`\``;
for (const part of [means(), weaknesses(), state, text]) console.log(`${part}\n`);
if (writes) {
  const by = `\n\n${madeBy('npm run figures:adaptive -- --write')}`;
  writeFigures('docs/explanation/adaptive.md', 'adaptive-means', means() + by);
  writeFigures('docs/explanation/adaptive.md', 'adaptive-weak', weaknesses() + by);
  writeFigures('docs/explanation/adaptive.md', 'adaptive-inspect', state + by);
  writePictures(PICTURES, runOn, findSink);
}
