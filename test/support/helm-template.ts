/**
 * Renders the templates of a Helm chart: the part of Go's template language that deploy/helm uses. An unknown
 * function or a block that is not closed is an error. It replaces `helm template`, which no package registry has.
 *
 *     text {{- action -}} text      actions: if, else, with, define, end, and pipelines of functions and .paths
 */

import { createHash } from 'node:crypto';
import { stringify } from 'yaml';

type Value = unknown;

interface Block {
  readonly kind: 'if' | 'with';
  readonly condition: string;
  readonly body: Node[];
  readonly otherwise: Node[];
}

type Node = { readonly text: string } | { readonly pipeline: string } | Block;

interface Scope {
  /** The value of `.`. */
  readonly dot: Value;
  readonly definitions: Map<string, Node[]>;
}

const isEmpty = (value: Value): boolean =>
  value === undefined ||
  value === null ||
  value === false ||
  value === 0 ||
  value === '' ||
  (typeof value === 'object' && Object.keys(value).length === 0);

const indent = (width: Value, text: Value): string =>
  String(text).replaceAll(/^/gm, ' '.repeat(Number(width)));

const FUNCTIONS: Readonly<Record<string, (args: readonly Value[], scope: Scope) => Value>> = {
  include: ([name, dot], scope) => {
    const nodes = scope.definitions.get(String(name));
    if (nodes === undefined) throw new Error(`expected a template with a definition, got ${name}`);
    return renderNodes(nodes, { ...scope, dot });
  },
  toYaml: ([value]) => stringify(value).trimEnd(),
  indent: ([width, text]) => indent(width, text),
  nindent: ([width, text]) => `\n${indent(width, text)}`,
  quote: ([value]) => JSON.stringify(String(value ?? '')),
  default: ([fallback, value]) => (isEmpty(value) ? fallback : value),
  printf: ([format, ...args]) =>
    String(format).replaceAll('%s', () => String((args as Value[]).shift())),
  trunc: ([length, text]) => String(text).slice(0, Number(length)),
  trimSuffix: ([suffix, text]) =>
    String(text).endsWith(String(suffix))
      ? String(text).slice(0, -String(suffix).length)
      : String(text),
  sha256sum: ([text]) => createHash('sha256').update(String(text)).digest('hex'),
  eq: ([a, b]) => a === b,
  hasKey: ([object, name]) => Object.hasOwn(object as object, String(name)),
  not: ([value]) => isEmpty(value),
  required: ([message, value]) => {
    if (isEmpty(value)) throw new Error(String(message));
    return value;
  },
};

const TOKEN = /"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|"]+/g;

/** `a | f b` is `f b a`. */
function evaluate(pipeline: string, scope: Scope): Value {
  const tokens = pipeline.match(TOKEN) ?? [];
  const value = readPipeline(tokens, scope);
  if (tokens.length > 0) throw new Error(`expected the end of {{ ${pipeline} }}, got ${tokens[0]}`);
  return value;
}

function readPipeline(tokens: string[], scope: Scope): Value {
  let value = readCall(tokens, scope, []);
  while (tokens[0] === '|') {
    tokens.shift();
    value = readCall(tokens, scope, [value]);
  }
  return value;
}

function readCall(tokens: string[], scope: Scope, piped: readonly Value[]): Value {
  const first = tokens.shift();
  if (first === undefined) throw new Error('expected a value, got the end of the action');
  const call = FUNCTIONS[first];
  const args: Value[] = [];
  while (tokens.length > 0 && tokens[0] !== '|' && tokens[0] !== ')')
    args.push(readOperand(tokens.shift() ?? '', tokens, scope));
  if (call) return call([...args, ...piped], scope);
  if (args.length + piped.length > 0) throw new Error(`expected a known function, got ${first}`);
  return readOperand(first, tokens, scope);
}

function readOperand(token: string, tokens: string[], scope: Scope): Value {
  if (token === '(') {
    const value = readPipeline(tokens, scope);
    if (tokens.shift() !== ')') throw new Error('expected a closing parenthesis');
    return value;
  }
  if (token.startsWith('"')) return JSON.parse(token);
  if (/^\d+$/.test(token)) return Number(token);
  if (token === '.') return scope.dot;
  if (token.startsWith('.')) return fieldOf(scope.dot, token);
  throw new Error(`expected a value, got ${token}`);
}

/** A field that no value names is a mistake in the template, other than in Helm. */
function fieldOf(dot: Value, path: string): Value {
  let value = dot;
  for (const name of path.slice(1).split('.')) {
    if (typeof value !== 'object' || value === null || !(name in value))
      throw new Error(`expected a documented value, got ${path}`);
    value = (value as Record<string, Value>)[name];
  }
  return value;
}

function renderNodes(nodes: readonly Node[], scope: Scope): string {
  return nodes.map((node) => renderNode(node, scope)).join('');
}

function renderNode(node: Node, scope: Scope): string {
  if ('text' in node) return node.text;
  if ('pipeline' in node) return String(evaluate(node.pipeline, scope) ?? '');
  const value = evaluate(node.condition, scope);
  if (isEmpty(value)) return renderNodes(node.otherwise, scope);
  return renderNodes(node.body, node.kind === 'with' ? { ...scope, dot: value } : scope);
}

/** Parses a template, and adds what it defines to `definitions`. */
function parse(template: string, definitions: Map<string, Node[]>): Node[] {
  const pieces = template
    .replaceAll(/\s*\{\{-/g, '{{')
    .replaceAll(/-\}\}\s*/g, '}}')
    .split(/\{\{(.*?)\}\}/s);
  const root: Node[] = [];
  const open: { target: Node[]; block?: Block }[] = [{ target: root }];
  for (const [n, piece] of pieces.entries()) {
    const top = open.at(-1);
    if (top === undefined) throw new Error('expected a block, got one more {{ end }}');
    if (n % 2 === 0) {
      top.target.push({ text: piece });
      continue;
    }
    const [, word = '', rest = ''] = /^\s*(\S+)\s*(.*?)\s*$/s.exec(piece) ?? [];
    if (word === 'if' || word === 'with') {
      const block: Block = { kind: word, condition: rest, body: [], otherwise: [] };
      top.target.push(block);
      open.push({ target: block.body, block });
    } else if (word === 'define') {
      const target: Node[] = [];
      definitions.set(JSON.parse(rest), target);
      open.push({ target });
    } else if (word === 'else') {
      if (!top.block) throw new Error('expected {{ else }} in a block');
      top.target = top.block.otherwise;
    } else if (word === 'end') open.pop();
    else top.target.push({ pipeline: piece });
  }
  if (open.length !== 1) throw new Error(`expected ${open.length - 1} more {{ end }}`);
  return root;
}

/** Renders all templates of a chart, by file name. */
export function renderChart(
  templates: Readonly<Record<string, string>>,
  values: Readonly<Record<string, Value>>,
): Record<string, string> {
  const definitions = new Map<string, Node[]>();
  const parsed = Object.entries(templates).map(([name, text]) => {
    try {
      return [name, parse(text, definitions)] as const;
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`);
    }
  });
  return Object.fromEntries(
    parsed.map(([name, nodes]) => [name, renderNodes(nodes, { dot: values, definitions })]),
  );
}
