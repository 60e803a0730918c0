/**
 * Merges the files that a configuration includes: `include: [limits.d/*.yaml]`.
 *
 *     limits, plans    by name; a name in two files is an error
 *     allow, deny      one list after the other
 *     other sections   in one file only
 *
 * Only the main file includes others, so there are no cycles. Every error keeps its position in its own file.
 */

import { readdirSync } from 'node:fs';
import { basename, dirname, isAbsolute, join, resolve } from 'node:path';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import { errorMessageOf, formatMismatch } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { toBinaryKey } from '../keys/binary-key.ts';
import { readPattern } from '../keys/pattern.ts';
import { readRegularFile } from '../keys/text-file.ts';
import { yamlOffsetOf } from './yaml-position.ts';
import {
  type ConfigSource,
  formatProblems,
  formatWithSource,
  type ParsedSource,
  parseYaml,
} from './yaml-source.ts';

/** Where a field stands. */
export interface Position {
  readonly source: ConfigSource;
  readonly offset: number;
  /** Position of the file among those merged; 0: the main file. */
  readonly order: number;
}

export interface MergedConfig {
  /** The main file. */
  readonly file: string;
  readonly value: unknown;
  /** The position of a field of the merged value. */
  locate(field: string): Position;
}

type Problems = { readonly problems: readonly string[] };

/** Files that one configuration includes; more limits than that are too many as well. */
const MAX_INCLUDED_FILES = 1000;
/** Bytes of all of them. */
const MAX_INCLUDED_BYTES = 16 * 1024 * 1024;

const SECTIONS_BY_NAME = ['limits', 'plans'];
const LIST_SECTIONS = ['allow', 'deny'];

export const comparePositions = (a: Position | undefined, b: Position | undefined): number =>
  a && b ? a.order - b.order || a.offset - b.offset : 0;

/** True for a field that is at a path or below it. */
export const isFieldAt = (path: string, field: string): boolean =>
  field.startsWith(path) && /^$|^[.[]/.test(field.slice(path.length));

/** `maxBytes` is the bound of each file. */
export function mergeIncluded(main: ParsedSource, maxBytes: number): MergedConfig | Problems {
  const { file, value } = main;
  if (!isRecord(value) || value.include === undefined)
    return { file, value, locate: (field) => positionIn(main, field, 0) };
  const found = findFiles(main, value.include);
  if ('problems' in found) return found;
  const problems: string[] = [];
  const sources = [main];
  let bytes = 0;
  for (const included of found.files) {
    const parsed = readIncluded(main, included, Math.min(maxBytes, MAX_INCLUDED_BYTES - bytes));
    if ('problems' in parsed) problems.push(...parsed.problems);
    else {
      sources.push(parsed);
      bytes += Buffer.byteLength(parsed.text);
    }
  }
  if (problems.length > 0) return { problems: limited(problems) };
  return mergeSources(sources);
}

const limited = (problems: readonly string[]): readonly string[] =>
  formatProblems(problems, problems.length, (problem) => problem);

const positionIn = (source: ConfigSource, field: string, order: number): Position => ({
  source,
  offset: yamlOffsetOf(source.document.contents, field),
  order,
});

/** A file, and the entry of the main file that names it. */
interface IncludedFile {
  readonly file: string;
  readonly field: string;
}

function readIncluded(
  main: ParsedSource,
  { file, field }: IncludedFile,
  maxBytes: number,
): ParsedSource | Problems {
  try {
    return parseYaml(file, readRegularFile(file, maxBytes));
  } catch (error) {
    const message = `cannot read ${file}: ${errorMessageOf(error)}`;
    return { problems: [formatWithSource(main, positionIn(main, field, 0).offset, message)] };
  }
}

/** The files of the option `include`, in the order of its entries, those of a glob by name. */
function findFiles(
  main: ParsedSource,
  include: unknown,
): { readonly files: readonly IncludedFile[] } | Problems {
  const entries: readonly unknown[] = Array.isArray(include) ? include : [include];
  const own = resolve(main.file);
  const files = new Map<string, IncludedFile>();
  const problems: string[] = [];
  for (const [n, entry] of entries.entries()) {
    const field = Array.isArray(include) ? `include[${n}]` : 'include';
    try {
      if (!isNonEmptyString(entry) || /[*?]/.test(dirname(entry)))
        throw new Error('expected a file name, or one with * or ? in its last part');
      for (const name of expandName(dirname(main.file), entry))
        if (resolve(name) !== own) files.set(resolve(name), { file: name, field });
      if (files.size > MAX_INCLUDED_FILES)
        throw new Error(`expected at most ${MAX_INCLUDED_FILES} files`);
    } catch (error) {
      const { offset } = positionIn(main, field, 0);
      const message = `cannot read \`${field}\`: ${errorMessageOf(error)}`;
      problems.push(formatWithSource(main, offset, message));
    }
  }
  return problems.length > 0 ? { problems: limited(problems) } : { files: [...files.values()] };
}

/** A glob that matches no file is no error; hidden files never match. */
function expandName(directory: string, entry: string): readonly string[] {
  const path = isAbsolute(entry) ? entry : join(directory, entry);
  if (!/[*?]/.test(basename(path))) return [path];
  const glob = readPattern({ glob: basename(path) }, 'include');
  const names = readdirSync(dirname(path)).filter(
    (name) => !name.startsWith('.') && glob.matches(toBinaryKey(name)),
  );
  return names.sort().map((name) => join(dirname(path), name));
}

/** Where a field of the merged value was written. */
interface Origin {
  readonly order: number;
  /** Its path in that file. */
  readonly path: string;
}

function mergeSources(sources: readonly ParsedSource[]): MergedConfig | Problems {
  const merge = new Merge(sources);
  for (const order of sources.keys()) merge.add(order);
  if (merge.problems.length > 0) return { problems: limited(merge.problems) };
  return { file: sources[0].file, value: merge.value(), locate: (field) => merge.locate(field) };
}

class Merge {
  readonly problems: string[] = [];
  readonly #sources: readonly ParsedSource[];
  readonly #origins = new Map<string, Origin>();
  readonly #sections = new Map<string, unknown>();

  constructor(sources: readonly ParsedSource[]) {
    this.#sources = sources;
  }

  /** Adds the sections of a file. */
  add(order: number): void {
    const { value } = this.#sources[order];
    if (!isRecord(value)) this.#report(order, '', 'sections of a configuration', value);
    for (const [name, section] of Object.entries(isRecord(value) ? value : {})) {
      if (name === 'include') {
        if (order > 0) this.#report(order, name, 'in the main file only', section);
      } else if (SECTIONS_BY_NAME.includes(name) && (isRecord(section) || section === null))
        this.#addNames(order, name, section ?? {});
      else if (LIST_SECTIONS.includes(name)) this.#addList(order, name, section);
      else if (this.#define(order, name)) this.#sections.set(name, section);
    }
  }

  #addNames(order: number, name: string, section: object): void {
    const target = (this.#sections.get(name) ?? new Map()) as Map<string, unknown>;
    const paths = new OptionReader(name, section);
    for (const [key, item] of Object.entries(section)) {
      if (this.#define(order, paths.pathOf(key))) target.set(key, item);
      this.#sections.set(name, target);
    }
  }

  #addList(order: number, name: string, section: unknown): void {
    const target = (this.#sections.get(name) ?? []) as unknown[];
    const items: readonly unknown[] = Array.isArray(section) ? section : [section];
    for (const [n, item] of items.entries()) {
      const from = Array.isArray(section) ? `${name}[${n}]` : name;
      this.#define(order, `${name}[${target.length}]`, from);
      target.push(item);
    }
    this.#sections.set(name, target);
  }

  /** Notes where a field was written; false if another file has it, too. */
  #define(order: number, path: string, from = path): boolean {
    const other = this.#origins.get(path);
    if (!other) this.#origins.set(path, { order, path: from });
    else {
      const { source, offset } = this.#position(other);
      const { line } = source.lines.linePos(offset);
      this.#report(order, from, `defined once, but ${source.file}:${line} has it, too`, path);
    }
    return !other;
  }

  #report(order: number, path: string, expected: string, got: unknown): void {
    const { source, offset } = this.#position({ order, path });
    this.problems.push(formatWithSource(source, offset, formatMismatch(path, expected, got)));
  }

  #position({ order, path }: Origin): Position {
    return positionIn(this.#sources[order], path, order);
  }

  value(): object {
    return Object.fromEntries(
      [...this.#sections].map(([name, section]) => [
        name,
        section instanceof Map ? Object.fromEntries(section) : section,
      ]),
    );
  }

  /** The position of a field: below the longest path that some file has. */
  locate(field: string): Position {
    let best = '';
    for (const path of this.#origins.keys())
      if (path.length > best.length && isFieldAt(path, field)) best = path;
    const origin = this.#origins.get(best) ?? { order: 0, path: '' };
    return this.#position({ ...origin, path: origin.path + field.slice(best.length) });
  }
}
