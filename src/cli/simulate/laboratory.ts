import { suggestName } from '../../core/suggestion.ts';
import { CATALOGUE } from '../../simulator/laboratory/catalogue.ts';
import {
  DEFAULT_RULES,
  findRule,
  MAX_FIXED,
  RULE_NAMES,
} from '../../simulator/laboratory/rules.ts';
import { type Evaluation, evaluate, type NamedRule } from '../../simulator/laboratory/score.ts';
import { SINK_CLASSES, type Sink } from '../../simulator/laboratory/sink.ts';
import {
  CommandError,
  EXIT_OK,
  integerUpTo,
  rangeFlag,
  requireDirectory,
  type Terminal,
} from '../framework/command.ts';
import { SEED_RANGE, writeSvg } from './flags.ts';
import { laboratoryPicture } from './laboratory-picture.ts';
import { catalogueList, laboratoryTable } from './laboratory-table.ts';

export const DEFAULT_SEEDS = 5;
const MAX_SEEDS = 101;
const MAX_RULES = 20;

export interface LaboratoryFlags {
  readonly rule?: string | undefined;
  readonly sink?: string | undefined;
  readonly list?: boolean | undefined;
  readonly seeds?: string | undefined;
  readonly seed?: string | undefined;
  readonly svg?: string | undefined;
  readonly json?: boolean | undefined;
}

export function runLaboratory(flags: LaboratoryFlags, terminal: Terminal): number {
  const sinks = readSinks(flags.sink);
  if (flags.list) {
    for (const line of catalogueList(sinks)) terminal.print(line);
    return EXIT_OK;
  }
  const rules = readRules(flags.rule);
  const first = rangeFlag(flags, 'seed', 1, SEED_RANGE);
  const count = rangeFlag(flags, 'seeds', DEFAULT_SEEDS, integerUpTo(MAX_SEEDS));
  const seeds = Array.from({ length: count }, (_, n) => first + n);
  if (flags.svg !== undefined && sinks.length > 1) {
    throw new CommandError(`expected one --sink for --svg, got ${sinks.length}`);
  }
  requireDirectory(flags.svg);

  const evaluations = evaluateAll(rules, sinks, seeds, terminal, (evaluation) => {
    if (flags.json) terminal.print(jsonLine(evaluation));
  });
  if (!flags.json) for (const line of laboratoryTable(evaluations)) terminal.print(line);
  writeSvg(flags.svg, () => laboratoryPicture(evaluations), terminal);
  return EXIT_OK;
}

/** Shows the progress, and clears it before the results are printed. */
function evaluateAll(
  rules: readonly NamedRule[],
  sinks: readonly Sink[],
  seeds: readonly number[],
  terminal: Terminal,
  onResult: (evaluation: Evaluation) => void,
): Evaluation[] {
  const pairs = sinks.flatMap((sink) => rules.map((rule) => ({ rule, sink })));
  try {
    return pairs.map(({ rule, sink }, n) => {
      terminal.progress?.(`${rule.name} on ${sink.name}, ${n + 1} of ${pairs.length} ...`);
      const evaluation = evaluate(rule, sink, seeds);
      onResult(evaluation);
      return evaluation;
    });
  } finally {
    terminal.progress?.('');
  }
}

/** Names of rules by their origin. */
const OTHER_NAMES: Readonly<Record<string, string>> = {
  vector: 'aimd',
  arc: 'aimd',
  gradient: 'envoy',
};

function readRules(list: string | undefined): NamedRule[] {
  const names = unique(list === undefined ? DEFAULT_RULES : wordsOf(list));
  if (names.length > MAX_RULES) {
    throw new CommandError(`expected at most ${MAX_RULES} rules, got ${names.length}`);
  }
  return names.map((name) => {
    const create = findRule(name);
    if (create) return { name, create };
    const known = `${RULE_NAMES.join(', ')} or fixed:N with N from 1 to ${MAX_FIXED}`;
    const word = OTHER_NAMES[name] ?? name;
    throw new CommandError(
      withHint(`expected \`--rule\` to be one of ${known}, got "${name}"`, word, RULE_NAMES),
    );
  });
}

/** The sinks of every word: a name, else a class, else a part of names. In the order of the catalogue. */
function readSinks(list: string | undefined): readonly Sink[] {
  if (list === undefined) return CATALOGUE;
  const chosen = new Set(wordsOf(list).flatMap(findSinks));
  return CATALOGUE.filter((sink) => chosen.has(sink));
}

function findSinks(word: string): readonly Sink[] {
  const tests: readonly ((sink: Sink) => boolean)[] = [
    ({ name }) => name === word,
    ({ kind }) => kind === word,
    ({ name }) => word !== '' && name.includes(word),
  ];
  const found = tests.map((test) => CATALOGUE.filter(test)).find(({ length }) => length > 0);
  if (found) return found;
  const names = CATALOGUE.map(({ name }) => name);
  const expected = `a class (${SINK_CLASSES.join(', ')}) or a sink (${names.join(', ')})`;
  throw new CommandError(
    withHint(`expected \`--sink\` to be ${expected}, got "${word}"`, word, [
      ...names,
      ...SINK_CLASSES,
    ]),
  );
}

function withHint(message: string, word: string, known: readonly string[]): string {
  const hint = suggestName(word, known);
  return hint === undefined ? message : `${message}; ${hint}`;
}

const wordsOf = (list: string): string[] => list.split(',').map((word) => word.trim());

const unique = (names: readonly string[]): string[] => [...new Set(names)];

function jsonLine({ rule, sink, seeds, best, median, worstScore, settlingMs }: Evaluation): string {
  const { score, sentInSpell, peakInSpell, ...measures } = median;
  return JSON.stringify({
    rule,
    sink: sink.name,
    class: sink.kind,
    seeds: seeds.length,
    best: { limit: best.limit, ...best.figures },
    score,
    worstScore,
    ...measures,
    ...(sink.spell ? { sentInSpell, peakInSpell } : {}),
    ...(sink.changes ? { settlingMs } : {}),
  });
}
