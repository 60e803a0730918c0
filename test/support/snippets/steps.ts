/** What is done with the blocks of a page, in order: files are written, the rest is run. */

import { type Block, type Page, RUNNABLE } from './pages.ts';

export interface Step {
  readonly line: number;
  readonly kind: 'file' | 'js' | 'ts' | 'sh' | 'yaml' | 'nginx' | 'prints';
  readonly name: string;
  readonly text: string;
  readonly port: number | undefined;
  readonly exitCode: number;
}

const EXTENSIONS: Readonly<Record<string, string>> = { js: 'mjs', ts: 'mts', nginx: 'conf' };

export function stepsOf({ blocks }: Page): Step[] {
  const steps: Step[] = [];
  let chain = '';
  blocks.forEach((block, n) => {
    const { line, language, file, port, exitCode } = block;
    const name = file ?? `snippet-${line}.${EXTENSIONS[language] ?? language}`;
    const text = block.continues ? `${chain}\n${block.text}` : block.text;
    const step = { line, name, text, port, exitCode };
    if (block.prints) steps.push({ ...step, kind: 'prints' });
    if (language === 'js' || language === 'ts') chain = text;
    if (!RUNNABLE.has(language) || language === 'json' || isContinued(blocks, n)) return;
    if (isRun(block) && !isUsed(blocks, n)) steps.push({ ...step, kind: language as Step['kind'] });
    else if (file !== undefined) steps.push({ ...step, kind: 'file' });
  });
  return steps;
}

const isRun = ({ notRun, checkedBy }: Block): boolean =>
  notRun === undefined && checkedBy === undefined;

/** A later block contains this one: running that one runs both. */
const isContinued = (blocks: readonly Block[], n: number): boolean => {
  const next = blocks.slice(n + 1).find(({ language }) => language === blocks[n].language);
  return ['js', 'ts'].includes(blocks[n].language) && next?.continues === true;
};

/** A program that a later command or program of the page names is run by that. */
const isUsed = (blocks: readonly Block[], n: number): boolean => {
  const { file, language, port } = blocks[n];
  if (file === undefined || !['js', 'ts'].includes(language) || port !== undefined) return false;
  return blocks
    .slice(n + 1)
    .some((later) => ['sh', 'js', 'ts'].includes(later.language) && later.text.includes(file));
};
