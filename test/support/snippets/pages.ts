/**
 * Reads the code blocks of a page and what its comments say about them. CONTRIBUTING.md explains the comments to writers.
 *
 *     <!-- servers: redis -->          of the page: servers that run beside its blocks, at their default ports
 *     <!-- continues -->               of a block: it is appended to the block before it
 *     <!-- stays running on 3000 -->   it does not end; the next block follows when this port accepts connections
 *     <!-- exits with 1 -->            the exit code; default 0
 *     <!-- prints -->                  of a block without a language: what the block before it prints
 *     <!-- checked by test/… -->       that test checks it
 *     <!-- not run: reason -->
 */

import { existsSync, readdirSync, readFileSync } from 'node:fs';

/** A code block and what is done with it. */
export interface Block {
  readonly line: number;
  readonly language: string;
  readonly text: string;
  /** The name in a comment in the first line: the block is this file. */
  readonly file: string | undefined;
  readonly continues: boolean;
  readonly port: number | undefined;
  readonly exitCode: number;
  readonly prints: boolean;
  readonly checkedBy: string | undefined;
  readonly notRun: string | undefined;
}

export interface Page {
  readonly path: string;
  readonly servers: readonly string[];
  readonly blocks: readonly Block[];
  /** Comments that are not understood. */
  readonly mistakes: readonly string[];
}

/** Languages whose blocks are run or validated. */
export const RUNNABLE: ReadonlySet<string> = new Set(['js', 'ts', 'sh', 'yaml', 'nginx', 'json']);

export const SERVERS: ReadonlySet<string> = new Set(['redis', 'etcd', 'nats', 'daemon', 'api']);

/** README.md and all pages of docs, except decisions. */
export const pagePaths = (): string[] => [
  'README.md',
  ...readdirSync('docs', { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md') && !path.startsWith('decisions/'))
    .map((path) => `docs/${path}`)
    .sort(),
];

export const readPage = (path: string): Page => parsePage(path, readFileSync(path, 'utf8'));

const FENCE = /^(?: {2})?```(\w*)$/;
const COMMENT = /^(?: {2})?<!-- (.*) -->$/;
/** Comments with another purpose. */
const OTHER = /^(?:figures: |\/figures$|generated|\/generated$)/;
const FILE = /^(?:\/\/|#) ([\w./-]+\.\w+)$/;

export function parsePage(path: string, text: string): Page {
  const lines = text.split('\n');
  const blocks: Block[] = [];
  const mistakes: string[] = [];
  let servers: string[] = [];
  let comments: string[] = [];
  const mistake = (line: number, what: string): unknown =>
    mistakes.push(`${path}:${line + 1}: ${what}`);
  for (let line = 0; line < lines.length; line++) {
    const [, comment] = COMMENT.exec(lines[line]) ?? [];
    const [, language] = FENCE.exec(lines[line]) ?? [];
    if (comment?.startsWith('servers: ')) {
      servers = comment.slice('servers: '.length).split(', ');
      for (const name of servers) if (!SERVERS.has(name)) mistake(line, `no server ${name}`);
    } else if (comment !== undefined && !OTHER.test(comment)) {
      comments.push(comment);
    } else if (language !== undefined) {
      const end = lines.findIndex((each, n) => n > line && /^(?: {2})?```$/.test(each));
      const body = lines.slice(line + 1, end).join('\n');
      const read = readBlock(line + 1, language, `${body}\n`, comments);
      for (const each of read.mistakes) mistake(line, each);
      blocks.push(read.block);
      comments = [];
      line = end;
    } else if (lines[line].trim() !== '' && comments.length > 0) {
      mistake(line, `no block follows the comment "${comments[0]}"`);
      comments = [];
    }
  }
  return { path, servers, blocks, mistakes };
}

function readBlock(line: number, language: string, text: string, comments: readonly string[]) {
  const [, file] = FILE.exec(text.slice(0, text.indexOf('\n'))) ?? [];
  const block = {
    line,
    language,
    text,
    file,
    continues: false,
    port: undefined as number | undefined,
  };
  const more = { exitCode: 0, prints: false, checkedBy: undefined as string | undefined };
  let notRun: string | undefined;
  const mistakes: string[] = [];
  for (const comment of comments) {
    const [, value = ''] = / (?:on|with|by|run:) (.+)$/.exec(comment) ?? [];
    if (comment === 'continues') block.continues = true;
    else if (comment === 'prints') more.prints = true;
    else if (/^stays running on \d+$/.test(comment)) block.port = Number(value);
    else if (/^exits with \d+$/.test(comment)) more.exitCode = Number(value);
    else if (/^checked by \S+$/.test(comment)) more.checkedBy = value;
    else if (/^not run: ./.test(comment)) notRun = value;
    else mistakes.push(`unknown comment "${comment}"`);
  }
  if (more.checkedBy !== undefined && !existsSync(more.checkedBy))
    mistakes.push(`no file ${more.checkedBy}`);
  return { block: { ...block, ...more, notRun }, mistakes };
}
