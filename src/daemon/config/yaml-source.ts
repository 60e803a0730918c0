import { Composer, type CST, type Document, Lexer, LineCounter, Parser, visit } from 'yaml';
import { errorMessageOf } from '../../core/errors.ts';

/** More aliases are an alias bomb. */
const MAX_ALIASES = 100;

/** Collections within collections. A deeper text would exhaust the stack of the YAML composer, which ends the process. */
const MAX_NESTING = 64;

/** Fields of one object: the parser compares each with all others. */
const MAX_FIELDS = 2000;

export interface ConfigSource {
  readonly file: string;
  readonly text: string;
  readonly lines: LineCounter;
  readonly document: Document.Parsed;
}

export interface ParsedSource extends ConfigSource {
  readonly value: unknown;
}

export function parseYaml(
  file: string,
  text: string,
): ParsedSource | { readonly problems: readonly string[] } {
  const lines = new LineCounter();
  const parsed = parseTokens(text, lines);
  if ('bound' in parsed) {
    const line = text.slice(0, parsed.at).split('\n').length;
    return { problems: [`${file}:${line}: expected at most ${parsed.bound}`] };
  }
  const composer = new Composer({ prettyErrors: false, logLevel: 'error' });
  const [document, another] = composer.compose(
    parsed.tokens,
    true,
    text.length,
  ) as Iterable<Document.Parsed>;
  const source = { file, text, lines, document };
  const found: YamlError[] = [...document.errors];
  if (another) found.push({ code: MULTIPLE_DOCS_CODE, message: '', pos: another.range });
  const errors = found.length > 0 ? found : undefinedAliases(document);
  if (errors.length > 0) {
    const format = ({ code, message, pos }: YamlError): string =>
      formatWithSource(source, pos[0], FRIENDLY_MESSAGES[code] ?? message);
    const unique = uniqueErrors(errors);
    return { problems: formatProblems(unique, unique.length, format) };
  }
  try {
    const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES + 1 }); // with the anchor
    return { ...source, value: value ?? {} };
  } catch (error) {
    return { problems: [`${file}: ${errorMessageOf(error)}`] };
  }
}

/** The tokens of a text, or a bound that it exceeds: found without recursion, before the document is composed. */
function parseTokens(
  text: string,
  lines: LineCounter,
): { readonly tokens: readonly CST.Token[] } | { readonly at: number; readonly bound: string } {
  const parser = new Parser(lines.addNewLine);
  const tokens: CST.Token[] = [];
  let aliases = 0;
  let previous = '';
  lines.addNewLine(0);
  for (const lexeme of new Lexer().lex(text)) {
    for (const token of parser.next(lexeme)) tokens.push(token);
    if (lexeme.startsWith('*') && previous !== SCALAR_LEXEME) aliases++;
    const { stack, offset: at } = parser;
    const top = stack.at(-1);
    const isMap = top?.type === 'block-map' || (top?.type === 'flow-collection' && isFlowMap(top));
    if (stack.length > MAX_NESTING + 2) return { at, bound: `${MAX_NESTING} levels of nesting` }; // with document and scalar
    if (isMap && top.items.length > MAX_FIELDS) return { at, bound: `${MAX_FIELDS} fields` };
    if (aliases > MAX_ALIASES) return { at, bound: `${MAX_ALIASES} aliases` };
    previous = lexeme;
  }
  for (const token of parser.end()) tokens.push(token);
  return { tokens };
}

/** Precedes the text of a scalar. */
const SCALAR_LEXEME = '\x1f';

const isFlowMap = ({ start }: CST.FlowCollection): boolean => start.type === 'flow-map-start';

interface YamlError {
  readonly code: string;
  readonly message: string;
  readonly pos: readonly number[];
}

/** With several open brackets, the parser reports the end of each at the same position. */
const uniqueErrors = (errors: readonly YamlError[]): readonly YamlError[] => [
  ...new Map(errors.map((error) => [`${error.pos[0]} ${error.message}`, error])).values(),
];

const BAD_ALIAS_CODE = 'BAD_ALIAS';
const MULTIPLE_DOCS_CODE = 'MULTIPLE_DOCS';

/** Messages in place of those of the YAML parser. */
const FRIENDLY_MESSAGES: Readonly<Record<string, string>> = {
  [BAD_ALIAS_CODE]: "a string that begins with * needs quotes, as in '*.example.org'",
  [MULTIPLE_DOCS_CODE]: 'expected one configuration, got another one after ---',
};

/** Aliases without an anchor: most likely patterns without quotes. */
function undefinedAliases(document: Document.Parsed): YamlError[] {
  const found: YamlError[] = [];
  visit(document, {
    Alias(_, alias) {
      if (alias.resolve(document) === undefined)
        found.push({ code: BAD_ALIAS_CODE, message: '', pos: [alias.range?.[0] ?? 0] });
    },
  });
  return found;
}

/** More are not shown at once. */
const MAX_PROBLEMS = 20;

export function formatProblems<T>(
  found: readonly T[],
  total: number,
  format: (one: T) => string,
): readonly string[] {
  const shown = found.slice(0, MAX_PROBLEMS).map(format);
  const hidden = total - shown.length;
  return hidden > 0 ? [...shown, `and ${hidden} more`] : shown;
}

/** Lines that look like a secret, whatever the error is. */
const LOOKS_SECRET = /(?:token|password|key)["']?\s*:|:\/\/\S*@/i;

/** `file:line:column: message`, the line itself unless it holds a secret, and a mark below the position. */
export function formatWithSource(
  { file, text, lines }: ConfigSource,
  offset: number,
  message: string,
): string {
  const { line, col } = lines.linePos(Math.min(offset, text.length));
  const source = text.split('\n')[line - 1] ?? '';
  if (source.length > MAX_SEARCHED_CHARS || LOOKS_SECRET.test(source))
    return `${file}:${line}:${col}: ${message}`;
  const shown = source.slice(0, MAX_LINE_CHARS).trimEnd();
  const number = String(line).padStart(5);
  const mark = `${' '.repeat(Math.min(col - 1, MAX_LINE_CHARS))}^`;
  return `${file}:${line}:${col}: ${message}\n${number} | ${shown}\n      | ${mark}`;
}

const MAX_LINE_CHARS = 160;

/** A longer line is not shown: the search for secrets takes quadratic time. */
const MAX_SEARCHED_CHARS = 2000;
