import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import { yamlOffsetOf } from '../../daemon/config/yaml-position.ts';
import {
  formatProblems,
  formatWithSource,
  type ParsedSource,
  parseYaml,
} from '../../daemon/config/yaml-source.ts';
import { readBounded } from '../../daemon/keys/text-file.ts';
import { LIMIT_KINDS } from '../../limiter/limiter.ts';
import { readScenario } from '../../simulator/scenario/read.ts';
import type { Scenario } from '../../simulator/scenario/scenario.ts';
import { CommandError } from '../framework/command.ts';

const MAX_FILE_BYTES = 1024 * 1024;

/** @throws {CommandError} with every mistake. */
export function loadScenario(file: string): Scenario {
  const source = parseFile(file);
  return readLocated(source, source.value, nameOf(file));
}

/** Loads a scenario with another rule in its only limit. @throws {CommandError} */
export function loadScenarioWithRule(file: string, ruleText: string): Scenario {
  const source = parseFile(file);
  const rule = parse('--compare', ruleText).value;
  const { value } = source;
  const limits = isRecord(value) && isRecord(value.limits) ? Object.entries(value.limits) : [];
  const [only, ...others] = limits;
  if (!only || others.length > 0 || !isRecord(only[1]))
    throw new CommandError(
      `expected \`--compare\` to be a file where ${file} has ${limits.length} limits`,
    );
  if (!isRecord(rule)) throw new CommandError('expected `--compare` to be a file or a limit');
  const kept = Object.entries(only[1]).filter(([name]) => !LIMIT_KINDS.includes(name));
  const limit = { ...Object.fromEntries(kept), ...rule };
  const replaced = { ...(value as object), limits: { [only[0]]: limit } };
  try {
    return readScenario(replaced, ruleText);
  } catch (error) {
    throw error instanceof ConfigError ? new CommandError(`--compare: ${error.message}`) : error;
  }
}

function parseFile(file: string): ParsedSource {
  let text: string | undefined;
  try {
    text = readBounded(file, MAX_FILE_BYTES);
  } catch (error) {
    throw new CommandError(`cannot read ${file}: ${errorMessageOf(error)}`);
  }
  if (text === undefined) throw new CommandError(`${file} is too large to be a scenario`);
  return parse(file, text);
}

function parse(name: string, text: string): ParsedSource {
  const parsed = parseYaml(name, text);
  if ('problems' in parsed) throw new CommandError(parsed.problems.join('\n'));
  return parsed;
}

function readLocated(source: ParsedSource, value: unknown, name: string): Scenario {
  try {
    return readScenario(value, name);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    const errors = [error, ...error.additionalErrors].map((one) => ({
      message: one.message,
      offset: yamlOffsetOf(source.document.contents, one.field),
    }));
    errors.sort((a, b) => a.offset - b.offset);
    const format = ({ message, offset }: (typeof errors)[number]): string =>
      formatWithSource(source, offset, message);
    throw new CommandError(`\n${formatProblems(errors, errors.length, format).join('\n')}`);
  }
}

/** The name of a file without its folder and `.yaml`. */
const nameOf = (file: string): string =>
  file.replace(/^.*[/\\]/, '').replace(/\.(?:ya?ml|json)$/, '');
